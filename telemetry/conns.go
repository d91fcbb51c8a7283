package telemetry

import (
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/kvlane/kvlane/wire"
)

// maxConns is the maximum number of connections of a server.
const maxConns = 32

// boundedListener accepts at most maxConns concurrent connections. At the limit, a new connection
// replaces the one that has been idle longest. If none is idle, the new connection is closed.
type boundedListener struct {
	net.Listener
	slots *wire.Slots
}

// boundedConn is a connection with a slot.
type boundedConn struct {
	net.Conn
	slots *wire.Slots
	slot  *wire.Slot
}

func bounded(l net.Listener) net.Listener {
	return &boundedListener{Listener: l, slots: wire.NewSlots(maxConns)}
}

// Accept implements net.Listener.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if slot := l.slots.Take(func() { _ = c.Close() }); slot != nil {
			return &boundedConn{Conn: c, slots: l.slots, slot: slot}, nil
		}
		_ = c.Close()
	}
}

// Close closes the connection and releases its slot.
func (c *boundedConn) Close() error {
	c.slots.Release(c.slot)
	return c.Conn.Close()
}

// noteState is for http.Server.ConnState. It marks the connection as idle while it has no request.
func noteState(c net.Conn, state http.ConnState) {
	b, ok := c.(*boundedConn)
	switch {
	case !ok:
	case state == http.StateActive:
		b.slot.Busy()
	case state == http.StateIdle:
		b.slot.Idle()
	}
}

// localHostsOnly returns h if l listens on a non-loopback address. Otherwise it refuses requests
// whose Host header is neither localhost, a loopback address, nor the host of addr. This prevents
// web pages from reading h through a name that resolves to this machine. Requests without a Host
// header are served, because browsers always send it.
func localHostsOnly(addr string, l net.Listener, h http.Handler) http.Handler {
	at, ok := l.Addr().(*net.TCPAddr)
	if !ok || !at.IP.IsLoopback() {
		return h
	}
	own := hostOf(addr)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := hostOf(r.Host)
		if host != "" && !strings.EqualFold(host, "localhost") && !strings.EqualFold(host, own) && !isLoopback(host) {
			http.Error(w, "this server answers requests to localhost only", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// hostOf returns the host of HOST or HOST:PORT, without the brackets of an IPv6 address.
func hostOf(addr string) string {
	if host, _, err := net.SplitHostPort(addr); err == nil {
		return host
	}
	if n := len(addr); n > 2 && addr[0] == '[' && addr[n-1] == ']' {
		return addr[1 : n-1]
	}
	return addr
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
