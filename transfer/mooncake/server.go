package mooncake

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/wire"
)

// ServerOptions are the options of a Server. Zero values are the defaults.
type ServerOptions struct {
	// Name is the name of the segment. With P2PHANDSHAKE it is the HOST:PORT at which peers reach
	// the handshake; port 0 takes a free one, which Server.Segment returns. With another directory,
	// any name is valid.
	Name string
	// Listen is the address HOST:PORT on which handshakes are accepted. Default: Name. DataPort is
	// the port for data; 0 selects a free port.
	Listen   string
	DataPort int
	// Advertise is the handshake address that the directory publishes, HOST or HOST:PORT. Data uses
	// the same host. Default: the host of Listen and the listening port. If Listen is empty or an
	// unspecified address, the host of Name is used.
	Advertise string
	// Directory publishes the segment. Default: the directory for P2PHANDSHAKE.
	Directory Directory
	// Memory is the served memory. Required.
	Memory *Regions
	// OnNotify receives notifications. It may be called concurrently. Its error is sent to the
	// sender. ctx ends when the sender no longer waits. Nil: notifications are refused.
	OnNotify func(ctx context.Context, n Notification) error
	// Version is the published version of the data protocol: 2, or 1 for old peers. The server
	// accepts both.
	Version int

	// MaxConnections is the maximum number of data connections. A further connection replaces an
	// idle one, or is closed if none is idle. Default 1024.
	MaxConnections int
	// maximum time of a data connection without a request; default 10 minutes
	IdleTime      time.Duration
	StallTime     time.Duration // maximum time of a request without a byte; default 30 seconds
	RepublishTime time.Duration // interval of checks of the directory's entry; default 10 seconds
}

// Limits of the handshake.
const (
	maxHandshakes = 256      // concurrent connections
	requestsBytes = 64 << 20 // total memory of all requests above smallBytes
	smallBytes    = 64 << 10
	copies        = 4 // a request is twice in memory: as received and as decoded
)

func (o *ServerOptions) setDefaults() {
	if o.Directory == nil {
		o.Directory = p2p{}
	}
	if o.Listen == "" {
		o.Listen = o.Name
	}
	if o.Version == 0 {
		o.Version = 2
	}
	if o.MaxConnections == 0 {
		o.MaxConnections = 1024
	}
	if o.IdleTime == 0 {
		o.IdleTime = 10 * time.Minute
	}
	if o.StallTime == 0 {
		o.StallTime = 30 * time.Second
	}
	if o.RepublishTime == 0 {
		o.RepublishTime = 10 * time.Second
	}
}

func (o *ServerOptions) validate() error {
	var errs []error
	fail := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrInvalid))
	}
	if o.Name == "" {
		fail("Name is empty")
	}
	if !utf8.ValidString(o.Name) {
		fail("Name %q is not UTF-8", o.Name)
	}
	host, _, err := net.SplitHostPort(o.Name)
	if err == nil && unspecified(host) {
		fail("Name %q has no host that peers can reach; set Listen to the local address", o.Name)
	}
	if _, own := o.Directory.(p2p); own && err != nil {
		fail("Name %q is not the HOST:PORT at which peers reach the segment, an IPv6 address in brackets", o.Name)
	}
	if advertised, _ := hostPort(o.Advertise); o.Advertise != "" && unspecified(advertised) {
		fail("Advertise %q has no host that peers can reach", o.Advertise)
	}
	if o.Memory == nil {
		fail("Memory is not set")
	}
	if o.DataPort < 0 || o.DataPort > 65535 {
		fail("DataPort %d is not 0 to 65535", o.DataPort)
	}
	if o.Version != 1 && o.Version != 2 {
		fail("Version %d is not 1 or 2", o.Version)
	}
	if o.MaxConnections < 1 || o.IdleTime < 0 || o.StallTime < 0 || o.RepublishTime < 0 {
		fail("MaxConnections %d, IdleTime %v, StallTime %v, RepublishTime %v: must not be negative", o.MaxConnections, o.IdleTime, o.StallTime, o.RepublishTime)
	}
	return errors.Join(errs...)
}

// unspecified reports whether a host is empty or an unspecified address.
func unspecified(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

// hostPort splits HOST:PORT. The port is 0 if addr has none.
func hostPort(addr string) (host string, port int) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return addr, 0
	}
	port, _ = strconv.Atoi(text)
	return host, port
}

// Server serves a segment to peers.
type Server struct {
	o      ServerOptions
	at     server // address of the handshake
	host   string // host of the data port
	port   int
	ctx    context.Context //nolint:containedctx // ends with the server; used by its goroutines
	cancel context.CancelFunc
	wg     sync.WaitGroup
	budget *wire.Budget // limits the memory of handshake requests
	counters

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

// Serve starts a server and publishes the segment. The caller closes the server.
func Serve(ctx context.Context, o ServerOptions) (_ *Server, err error) {
	listen := o.Listen
	o.setDefaults()
	fail := func(err error) (*Server, error) { return nil, fmt.Errorf("serve segment %s: %w", o.Name, err) }
	if err := o.validate(); err != nil {
		return fail(err)
	}
	if _, _, err := net.SplitHostPort(o.Listen); err != nil {
		o.Listen = net.JoinHostPort(o.Listen, "0") // the name has no port
	}
	var lc net.ListenConfig
	hands, err := lc.Listen(ctx, "tcp", o.Listen)
	if err != nil {
		return fail(err)
	}
	bound, _, _ := net.SplitHostPort(hands.Addr().String())
	data, err := lc.Listen(ctx, "tcp", net.JoinHostPort(bound, strconv.Itoa(o.DataPort)))
	if err != nil {
		return fail(errors.Join(err, hands.Close()))
	}
	s := &Server{o: o, budget: wire.NewBudget(requestsBytes, smallBytes, handshakeTime), conns: make(map[net.Conn]struct{})}
	s.name(listen, portOf(hands), portOf(data))
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.listen(hands, maxHandshakes, s.handshake)
	s.listen(data, o.MaxConnections, s.session)
	if err := s.publish(ctx); err != nil {
		return fail(errors.Join(err, s.stop()))
	}
	if _, ok := o.Directory.(p2p); !ok {
		s.wg.Go(s.republish)
	}
	return s, nil
}

func portOf(l net.Listener) int {
	a, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return 0
	}
	return a.Port
}

// name sets the segment's name and its published address. listen is the caller's
// ServerOptions.Listen, which may be empty.
func (s *Server) name(listen string, handshakePort, dataPort int) {
	host, _ := hostPort(s.o.Name)
	if _, port, err := net.SplitHostPort(s.o.Name); err == nil && port == "0" {
		s.o.Name = net.JoinHostPort(host, strconv.Itoa(handshakePort))
	}
	port := handshakePort
	if _, own := s.o.Directory.(p2p); !own {
		if h, _ := hostPort(listen); !unspecified(h) {
			host = h
		}
		if h, p := hostPort(s.o.Advertise); h != "" {
			host, port = h, cmp.Or(p, port)
		}
	}
	s.at, s.host, s.port = server{Host: host, Port: port}, host, dataPort
}

// Segment returns the current description.
func (s *Server) Segment() *Segment {
	return &Segment{
		Name: s.o.Name, Protocol: ProtocolTCP, DataHost: s.host, DataPort: s.port, Version: s.o.Version,
		Timestamp: time.Now().UTC().Format("2006-01-02 15:04:05.000000"), Buffers: s.o.Memory.Buffers(),
	}
}

func (s *Server) publish(ctx context.Context) error {
	return s.o.Directory.publish(ctx, s.Segment(), s.at)
}

// republish periodically checks the directory's entry and publishes it again if necessary.
func (s *Server) republish() {
	tick := time.NewTicker(s.o.RepublishTime)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		if err := s.check(s.ctx); err != nil && s.ctx.Err() == nil {
			s.directoryFailures.Add(1)
		}
	}
}

// check compares the directory's entry of the segment with this server. It publishes the entry
// again if it is missing, malformed, or refers to a process that does not respond. It returns
// ErrExists if another process serves the name.
func (s *Server) check(ctx context.Context) error {
	mine, addr, err := s.isListed(ctx)
	switch {
	case errors.Is(err, errdefs.ErrNotFound) || errors.Is(err, errdefs.ErrInvalid):
		return s.publish(ctx)
	case err != nil || mine:
		return err
	}
	if addr != s.at.address() {
		if _, err := exchange(ctx, addr, kindProbe, []byte("{}")); err == nil {
			return fmt.Errorf("segment %s is already served by the process at %s: %w", s.o.Name, addr, errdefs.ErrExists)
		}
	}
	return s.publish(ctx)
}

// isListed reports whether the directory's entry belongs to this server, and returns the handshake
// address in the entry.
func (s *Server) isListed(ctx context.Context) (mine bool, addr string, err error) {
	if addr, err = s.o.Directory.handshake(ctx, s.o.Name); err != nil {
		return false, "", err
	}
	listed, err := s.o.Directory.Find(ctx, s.o.Name)
	if err != nil {
		return false, addr, err
	}
	return addr == s.at.address() && listed.DataHost == s.host && listed.DataPort == s.port, addr, nil
}

// listen accepts at most most concurrent connections. It serves each in its own goroutine.
func (s *Server) listen(l net.Listener, most int, serve func(net.Conn, *wire.Slot)) {
	stop := context.AfterFunc(s.ctx, func() { _ = l.Close() }) // the error is irrelevant
	slots := wire.NewSlots(most)
	s.wg.Go(func() {
		defer stop()
		defer l.Close() //nolint:errcheck // the error is irrelevant
		wire.Accept(l, func(c net.Conn) {
			slot := slots.Take(func() { _ = c.Close() })
			if slot == nil {
				s.refusedConnections.Add(1)
				_ = c.Close()
				return
			}
			s.wg.Go(func() {
				defer slots.Release(slot)
				if s.addConn(c) {
					serve(c, slot)
				}
				s.removeConn(c)
			})
		}, func() { s.acceptFailures.Add(1) })
	})
}

// addConn registers a connection, which stop will close. It returns false after stop.
func (s *Server) addConn(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.conns[c] = struct{}{}
	}
	return !s.closed
}

func (s *Server) removeConn(c net.Conn) {
	_ = c.Close() // all replies are written
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// Close closes every connection and removes the segment from the directory, unless the entry
// belongs to another process. When it returns, memory is no longer accessed. It returns errors of
// the directory.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	wasClosed := s.closed
	s.mu.Unlock()
	if err := s.stop(); wasClosed || err != nil {
		return err
	}
	if mine, _, err := s.isListed(ctx); err == nil && !mine || errors.Is(err, errdefs.ErrNotFound) {
		return nil
	}
	return s.o.Directory.withdraw(ctx, s.o.Name)
}

// stop closes all connections and waits for all goroutines. It does not change the directory.
func (s *Server) stop() error {
	s.cancel()
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		_ = c.Close() // its goroutine sees the error
	}
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}

// handshake handles one request.
func (s *Server) handshake(c net.Conn, slot *wire.Slot) {
	if c.SetDeadline(time.Now().Add(handshakeTime)) != nil {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, handshakeTime)
	defer cancel()
	n, err := readLength(c)
	if err != nil {
		s.malformed.Add(1)
		return
	}
	release, err := s.budget.Take(ctx, copies*n)
	if err != nil {
		s.refusedConnections.Add(1)
		return
	}
	defer release()
	kind, body, err := readBody(c, n)
	if err != nil {
		s.malformed.Add(1)
		return
	}
	slot.Busy()
	s.handshakes.Add(1)
	answer, err := s.answer(ctx, kind, body)
	if err != nil {
		s.malformed.Add(1)
		return
	}
	if writeFrame(c, kind, answer) == nil {
		closeGracefully(c, time.Second)
	}
}

func (s *Server) answer(ctx context.Context, kind byte, body []byte) ([]byte, error) {
	switch kind {
	case kindConnection:
		s.refusedRDMA.Add(1)
		return json.Marshal(connectionAnswer{QPNum: []uint32{}, Reply: "RDMA is not supported: this segment uses tcp"})
	case kindMetadata:
		return json.Marshal(s.Segment())
	case kindNotify:
		var n Notification
		if err := json.Unmarshal(body, &n); err != nil {
			return nil, err
		}
		if s.o.OnNotify == nil {
			return json.Marshal(Notification{Message: "notifications are not accepted"})
		}
		if err := s.o.OnNotify(ctx, n); err != nil {
			return json.Marshal(Notification{Message: err.Error()})
		}
		s.notifications.Add(1)
		return json.Marshal(Notification{Message: success})
	case kindProbe:
		return json.Marshal(probeAnswer{Status: success})
	}
	return nil, fmt.Errorf("request of kind %d: %w", kind, errdefs.ErrInvalid)
}

// closeGracefully closes a connection whose peer may still be sending. It closes the sending side
// and reads until the peer closes or the time has passed. An immediate Close would reset the
// connection, and the peer could lose the last reply.
func closeGracefully(c net.Conn, most time.Duration) {
	t, ok := c.(*net.TCPConn)
	if !ok || t.CloseWrite() != nil || t.SetDeadline(time.Now().Add(most)) != nil {
		return
	}
	waste := make([]byte, bufferBytes)
	for {
		if _, err := t.Read(waste); err != nil {
			return
		}
	}
}
