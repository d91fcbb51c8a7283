package transfer

import (
	"io"
	"net"
	"sync"
	"testing"
)

// proxy forwards connections between engines. It can cut and delay them.
type proxy struct {
	l      net.Listener
	to     string
	joined sync.WaitGroup

	mu     sync.Mutex
	cond   *sync.Cond
	down   bool // refuse new connections and cut the old ones
	silent bool // forward no bytes but keep connections open
	// holdAfter is the number of bytes that a data connection forwards to the target. The proxy
	// holds later bytes until released is set. Negative: forward all.
	holdAfter int64
	hideEnd   bool  // until released is set, hide the end of queue-pair connections from targets
	heldBytes int64 // number of held bytes
	holding   int   // connections whose held bytes are not yet written
	released  bool
	// pause is called once, when a data connection has forwarded pauseAfter bytes in the direction
	// pauseUp. nil: never.
	pause      func()
	pauseAfter int64
	pauseUp    bool
	links      map[*link]struct{}
}

// link is one connection through the proxy.
type link struct {
	near, far   net.Conn
	data, queue bool // purpose of the connection
	holdsBytes  bool // some of its bytes are held; guarded by proxy.mu
}

func newProxy(tb testing.TB, to string) *proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(tb, err)
	p := &proxy{l: l, to: to, holdAfter: -1, links: make(map[*link]struct{})}
	p.cond = sync.NewCond(&p.mu)
	p.joined.Go(p.accept)
	tb.Cleanup(func() {
		_ = l.Close()
		p.set(func() { p.down, p.released, p.silent = true, true, false })
		p.cut(func(*link) bool { return true }, true)
		p.joined.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.l.Addr().String() }

func (p *proxy) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.cond.Broadcast()
}

func (p *proxy) accept() {
	for {
		near, err := p.l.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		down := p.down
		p.mu.Unlock()
		if down {
			_ = near.Close()
			continue
		}
		p.joined.Go(func() { p.serve(near) })
	}
}

func (p *proxy) serve(near net.Conn) {
	b := make([]byte, helloBytes)
	_, err := io.ReadFull(near, b)
	var h hello
	if err == nil {
		h, err = decodeHello(b)
	}
	var far net.Conn
	if err == nil {
		far, err = net.Dial("tcp", p.to)
	}
	if err != nil {
		_ = near.Close()
		return
	}
	l := &link{near: near, far: far, data: h.purpose == forData, queue: h.purpose == forQueue}
	p.set(func() { p.links[l] = struct{}{} })
	_, _ = far.Write(b)
	var both sync.WaitGroup
	both.Go(func() { p.forward(l, far, near, true) })
	both.Go(func() { p.forward(l, near, far, false) })
	both.Wait()
	p.set(func() {
		delete(p.links, l)
		if l.holdsBytes {
			p.holding--
		}
	})
}

// forward copies bytes in one direction. At the end of src it closes dst, unless bytes are held.
func (p *proxy) forward(l *link, dst, src net.Conn, up bool) {
	var passed int64
	b := make([]byte, 32<<10)
	var kept []byte
	for {
		n, err := src.Read(b)
		p.mu.Lock()
		for p.silent {
			p.cond.Wait()
		}
		hold := len(kept) > 0 || up && l.data && p.holdAfter >= 0 && passed+int64(n) > p.holdAfter && !p.released
		if hold {
			if p.heldBytes += int64(n); !l.holdsBytes {
				l.holdsBytes = true
				p.holding++
			}
		}
		p.mu.Unlock()
		if hold {
			kept = append(kept, b[:n]...)
		} else if n > 0 {
			passed += int64(n)
			if _, werr := dst.Write(b[:n]); werr != nil {
				err = werr
			}
			if pause := p.takePause(l, up, passed); pause != nil {
				pause()
			}
		}
		if err == nil {
			continue
		}
		if len(kept) > 0 {
			p.mu.Lock()
			for !p.released {
				p.cond.Wait()
			}
			p.mu.Unlock()
			_, _ = dst.Write(kept)
		}
		p.mu.Lock()
		for up && l.queue && p.hideEnd && !p.released {
			p.cond.Wait()
		}
		p.mu.Unlock()
		_ = dst.Close()
		if up {
			_ = src.Close()
		}
		return
	}
}

// takePause returns the pause that is due, if one is.
func (p *proxy) takePause(l *link, up bool, passed int64) (pause func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.data && up == p.pauseUp && passed >= p.pauseAfter {
		pause, p.pause = p.pause, nil
	}
	return pause
}

// cut closes the links for which f returns true, on the near side or on both.
func (p *proxy) cut(f func(*link) bool, both bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		if !f(l) {
			continue
		}
		if c, ok := l.near.(*net.TCPConn); ok {
			_ = c.SetLinger(0)
		}
		_ = l.near.Close()
		if both {
			_ = l.far.Close()
		}
	}
}

// dialRaw connects to addr and closes the connection when the test ends.
func dialRaw(tb testing.TB, addr string) net.Conn {
	tb.Helper()
	c, err := net.Dial("tcp", addr)
	must(tb, err)
	tb.Cleanup(func() { _ = c.Close() })
	return c
}
