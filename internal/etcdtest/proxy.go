package etcdtest

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
)

// Proxy forwards connections to a server.
type Proxy struct {
	Addr string // HOST:PORT

	to       string
	listener net.Listener
	running  sync.WaitGroup

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]struct{}
}

// NewProxy returns a proxy to an address. It ends with the test.
func NewProxy(tb testing.TB, to string) *Proxy {
	tb.Helper()
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{Addr: l.Addr().String(), to: to, listener: l, conns: make(map[net.Conn]struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	p.running.Go(func() { p.serve(ctx) })
	tb.Cleanup(func() {
		_ = l.Close() // it ends serve
		cancel()
		p.Cut(true)
		p.running.Wait()
	})
	return p
}

// Cut closes all connections. While cut is true, new ones are closed at once.
func (p *Proxy) Cut(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = cut
	for c := range p.conns {
		_ = c.Close() // it ends the goroutines of the connection
	}
}

func (p *Proxy) serve(ctx context.Context) {
	for {
		from, err := p.listener.Accept()
		if err != nil {
			return
		}
		to, err := new(net.Dialer).DialContext(ctx, "tcp", p.to)
		if err != nil {
			_ = from.Close() // the server is down
			continue
		}
		p.forward(from, to)
		p.forward(to, from)
	}
}

func (p *Proxy) forward(from, to net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[from] = struct{}{}
	if p.cut {
		_ = from.Close() // it ends the goroutine
	}
	p.running.Go(func() {
		_, _ = io.Copy(struct{ io.Writer }{to}, from) // until either is closed; without pipes of splice
		_, _ = to.Close(), from.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, from)
	})
}
