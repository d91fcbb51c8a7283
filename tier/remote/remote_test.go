package remote_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio/server"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/internal/blockhost"
	"github.com/kvlane/kvlane/internal/breaker"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/faulty"
	"github.com/kvlane/kvlane/tier/remote"
	"github.com/kvlane/kvlane/tier/tiertest"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// peer is a block server that a test stops, starts and delays. Its address stays the same.
type peer struct {
	name     string
	zone     string
	epoch    atomic.Uint64
	size     int64
	leaseMax time.Duration
	hotRate  int

	mu     sync.Mutex
	host   *blockhost.Host
	server *server.Server
	addr   string // empty: stopped

	silent atomic.Bool  // bytes of the server are held back
	delay  atomic.Int64 // of each read of the server's bytes, in nanoseconds
}

// start starts the server without blocks.
func (p *peer) start(t *testing.T) {
	t.Helper()
	host, err := blockhost.New(blockhost.Options{CapacityBytes: p.size})
	must(t, err)
	credentials, err := auth.NewServer(auth.ServerOptions{})
	must(t, err)
	s, err := server.New(server.Options{Host: host, Auth: credentials, LeaseMax: p.leaseMax, HotRate: p.hotRate, Zone: p.zone, Epoch: p.epoch.Load})
	must(t, err)
	addr, err := s.Listen(context.Background(), "127.0.0.1:0")
	must(t, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.host, p.server, p.addr = host, s, addr.String()
}

// stop stops the server and loses its blocks.
func (p *peer) stop(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	host, s := p.host, p.server
	p.host, p.server, p.addr = nil, nil, ""
	p.mu.Unlock()
	if s != nil {
		must(t, s.Close(context.Background()))
		must(t, host.Close(context.Background()))
	}
}

// heldConn holds back received bytes while its peer is silent, until its deadline or Close.
type heldConn struct {
	net.Conn
	p      *peer
	closed atomic.Bool
	until  atomic.Pointer[time.Time]
}

func (c *heldConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	time.Sleep(time.Duration(c.p.delay.Load()))
	for err == nil && c.p.silent.Load() {
		if end := c.until.Load(); c.closed.Load() || end != nil && !end.IsZero() && time.Now().After(*end) {
			return 0, os.ErrDeadlineExceeded
		}
		time.Sleep(time.Millisecond)
	}
	return n, err
}

func (c *heldConn) Close() error {
	c.closed.Store(true)
	return c.Conn.Close()
}

func (c *heldConn) SetReadDeadline(end time.Time) error {
	c.until.Store(&end)
	return c.Conn.SetReadDeadline(end)
}

func (c *heldConn) SetDeadline(end time.Time) error {
	c.until.Store(&end)
	return c.Conn.SetDeadline(end)
}

// peers are servers behind one configuration.
type peers []*peer

func newPeers(t *testing.T, n int, bytes int64) peers {
	t.Helper()
	var ps peers
	for i := range n {
		p := &peer{name: fmt.Sprintf("server-%d:1", i), zone: fmt.Sprint(i), size: bytes}
		p.start(t)
		t.Cleanup(func() { p.stop(t) })
		ps = append(ps, p)
	}
	return ps
}

func (ps peers) config(f block.Format) remote.Config {
	var names []string
	for _, p := range ps {
		names = append(names, p.name)
	}
	return remote.Config{
		Servers: strings.Join(names, ","), Formats: block.Formats{f}, Timeout: testkit.Patience() / 4,
		Latency: breaker.LatencyOptions{Least: time.Hour}, // a busy machine makes no server slow
		Breaker: breaker.Options{Failures: 2, Delay: 10 * time.Millisecond, MaxDelay: 20 * time.Millisecond}, Dial: ps.dial,
	}
}

func (ps peers) dial(ctx context.Context, address string) (net.Conn, error) {
	for _, p := range ps {
		if p.name != address {
			continue
		}
		p.mu.Lock()
		addr := p.addr
		p.mu.Unlock()
		if addr == "" {
			return nil, errors.New("the server is stopped")
		}
		c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		return &heldConn{Conn: c, p: p}, nil
	}
	return nil, fmt.Errorf("no server %q", address)
}

// damage flips a bit of a block in the memory of the server that has it.
func (ps peers) damage(t *testing.T, f block.Format, key block.Key) {
	t.Helper()
	for _, p := range ps {
		s, err := p.host.Space(t.Context(), auth.DefaultTenant, f)
		must(t, err)
		b, err := s.Get(key)
		if err == nil {
			b.Bytes()[f.Layout.ShardOff(1)+3] ^= 4
			b.Release()
		}
		s.Release()
		if err == nil {
			return
		}
	}
	t.Fatalf("no server has block %s", key)
}

func open(t *testing.T, c remote.Config) *remote.Tier {
	t.Helper()
	tr, err := remote.Open(t.Context(), c)
	must(t, err)
	t.Cleanup(func() { must(t, tr.Close(context.Background())) })
	return tr
}

func TestConformance(t *testing.T) {
	for _, n := range []int{1, 3} {
		for name, wrap := range map[string]func(tier.Tier) tier.Tier{
			"plain":     func(tr tier.Tier) tier.Tier { return tr },
			"decorated": func(tr tier.Tier) tier.Tier { return faulty.New(tr, nil, nil) },
		} {
			t.Run(fmt.Sprintf("%d servers/%s", n, name), func(t *testing.T) { conform(t, n, wrap) })
		}
	}
}

func conform(t *testing.T, n int, wrap func(tier.Tier) tier.Tier) {
	f := tiertest.NewFormat(t)
	of := make(map[tier.Tier]peers)
	start := func(t *testing.T, ps peers) tier.Tier {
		tr, err := remote.Open(t.Context(), ps.config(f))
		must(t, err)
		w := wrap(tr)
		of[w] = ps
		return w
	}
	tiertest.Run(t, tiertest.Config{
		Format: f,
		Open: func(t *testing.T, capacity int) tier.Tier {
			return start(t, newPeers(t, n, int64(capacity+64)*2*f.Layout.ImageBytes()))
		},
		Corrupt: func(t *testing.T, tr tier.Tier, key block.Key) { of[tr].damage(t, f, key) },
		Reopen: func(t *testing.T, tr tier.Tier) tier.Tier {
			must(t, tr.Close(context.WithoutCancel(t.Context())))
			return start(t, of[tr])
		},
	})
}

// eventually repeats f until it returns nil: on a busy machine a server is silent for a while.
func eventually(t *testing.T, f func() error) {
	t.Helper()
	for end := time.Now().Add(testkit.Patience()); ; time.Sleep(time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// Servers fail, become silent, restart and return in a random order. Every Get returns the image or
// a miss, and no operation exceeds its deadline by more than the fence.
func TestServersFailAndComeBack(t *testing.T) {
	f := tiertest.NewFormat(t)
	const keys, timeout = 24, 50 * time.Millisecond
	ps := newPeers(t, 3, 1<<22)
	c := ps.config(f)
	c.Timeout = timeout
	tr := open(t, c)
	r := rand.New(rand.NewPCG(1, 2))
	image, dst := tiertest.Buffer(t, f.Layout.ImageBytes()), tiertest.Buffer(t, f.Layout.ImageBytes())
	written := make(map[int]bool) // a Put without an answer may have stored the block
	var longest time.Duration
	timed := func(op func()) {
		start := time.Now()
		op()
		// Put makes two requests. Each may need 200 ms more for its fence.
		longest = max(longest, time.Since(start))
		if most := 2*(timeout+200*time.Millisecond) + testkit.Patience()/4; longest > most {
			t.Fatalf("an operation took %v, want at most %v", longest, most)
		}
	}
	for range 600 {
		p, i := ps[r.IntN(len(ps))], r.IntN(keys)
		switch r.IntN(20) {
		case 0:
			p.silent.Store(false)
			p.stop(t)
		case 1:
			p.silent.Store(false)
			p.stop(t)
			p.start(t)
		case 2:
			p.silent.Store(true)
		case 3:
			for _, p := range ps {
				p.silent.Store(false)
			}
		case 4, 5, 6, 7, 8:
			tiertest.Seal(t, f, image.Bytes(), tiertest.Key(i), 0)
			written[i] = true
			timed(func() { _ = tr.Put(t.Context(), tiertest.Key(i), image) })
		case 9, 10, 11:
			timed(func() { must(t, tr.Lookup(t.Context(), tiertest.Keys(i, i+1, i+2), make([]tier.State, 3))) })
		case 12, 13, 14:
			timed(func() {
				n, err := tr.Retain(t.Context(), tiertest.Keys(i, i+1, i+2))
				must(t, err)
				tr.Release(tiertest.Keys(i, i+1, i+2)[:n])
			})
		default:
			timed(func() {
				err := tr.Get(t.Context(), tiertest.Key(i), dst)
				if err == nil {
					if !written[i] {
						t.Fatalf("block %d was read, but never written", i)
					}
					must(t, tiertest.Check(f, dst.Bytes(), tiertest.Key(i), 0))
				} else if !errors.Is(err, errdefs.ErrNotFound) {
					t.Fatalf("read block %d: %v", i, err)
				}
			})
		}
	}
	// All servers work again, and so do hits.
	for _, p := range ps {
		p.silent.Store(false)
		p.stop(t)
		p.start(t)
	}
	for i := range keys {
		tiertest.Seal(t, f, image.Bytes(), tiertest.Key(i), 0)
		eventually(t, func() error { return tr.Put(t.Context(), tiertest.Key(i), image) })
	}
	for i := range keys {
		eventually(t, func() error { return tr.Get(t.Context(), tiertest.Key(i), dst) })
	}
	st := tr.PeerStats()
	t.Logf("longest operation %v; %d requests unavailable; %+v", longest, st.Unavailable, st.Servers)
	if st.Unavailable == 0 {
		t.Error("no unavailable request is counted")
	}
}

// After its breaker has opened, a silent server costs no time.
func TestBreakerOfASilentServer(t *testing.T) {
	f := tiertest.NewFormat(t)
	ps := newPeers(t, 1, 1<<22)
	c := ps.config(f)
	c.Breaker = breaker.Options{Failures: 2, Delay: time.Hour, MaxDelay: time.Hour}
	var tr *remote.Tier
	testkit.Grow(t, 30*time.Millisecond, func(timeout time.Duration) error {
		c.Timeout = timeout
		tr = open(t, c)
		return tr.PeerStats().Servers[0].Err // of the first request, before the server is silent
	})
	ps[0].silent.Store(true)
	states := make([]tier.State, 1)
	for range 100 {
		states[0] = tier.Ready
		must(t, tr.Lookup(t.Context(), tiertest.Keys(1), states))
		if states[0] != tier.Absent {
			t.Fatalf("a block of a silent server is %v", states[0])
		}
	}
	ps[0].silent.Store(false)
	s := tr.PeerStats().Servers[0]
	if s.State != "open" || s.Failures != 2 || s.Timeouts != 2 || s.Refused != 98 || s.Err == nil || tr.PeerStats().Unavailable != 100 {
		t.Errorf("after 100 lookups: %+v", s)
	}
}

func TestUnreachableServersAreNoted(t *testing.T) {
	f := tiertest.NewFormat(t)
	ps := newPeers(t, 2, 1<<22)
	ps[1].stop(t)
	tr := open(t, ps.config(f))
	if n := tr.Notes(); len(n) != 1 || !strings.Contains(n[0], ps[1].name) || !strings.Contains(n[0], "stopped") {
		t.Errorf("notes %q", n)
	}
}

// Blocks of a run are in one server, and all clients find them there. Without anchors each block is
// placed by its own key, and counted.
func TestRunsAreInOneServer(t *testing.T) {
	f := tiertest.NewFormat(t)
	ps := newPeers(t, 3, 1<<24)
	var prompt []block.Key
	for i := range 2 * tier.RunBlocks {
		prompt = append(prompt, tiertest.Key(i))
	}
	anchors := func() *tier.Anchors {
		a := tier.NewAnchors(1 << 10)
		a.Prompt(prompt)
		return a
	}
	one, two, none := open(t, ps.config(f)), open(t, ps.config(f)), open(t, ps.config(f))
	one.SetAnchors(anchors())
	two.SetAnchors(anchors())
	image := tiertest.Buffer(t, f.Layout.ImageBytes())
	for _, key := range prompt {
		tiertest.Seal(t, f, image.Bytes(), key, 0)
		must(t, one.Put(t.Context(), key, image))
	}
	for run := range 2 {
		at := make(map[string]int)
		for _, key := range prompt[run*tier.RunBlocks:][:tier.RunBlocks] {
			for _, p := range ps {
				s, err := p.host.Space(t.Context(), auth.DefaultTenant, f)
				must(t, err)
				if s.Contains(key) {
					at[p.name]++
				}
				s.Release()
			}
		}
		if len(at) != 1 {
			t.Errorf("run %d is in %d servers: %v", run, len(at), at)
		}
	}
	before := requests(two)
	n, err := two.Retain(t.Context(), prompt)
	must(t, err)
	if n != len(prompt) {
		t.Errorf("%d of %d blocks are found", n, len(prompt))
	}
	if got := requests(two) - before; got > 2 {
		t.Errorf("retaining two runs took %d requests, want one for each server", got)
	}
	two.Release(prompt)
	states := make([]tier.State, len(prompt))
	must(t, none.Lookup(t.Context(), prompt, states))
	if got := none.PeerStats().Unanchored; got != int64(len(prompt)) || one.PeerStats().Unanchored != 0 {
		t.Errorf("%d blocks without anchors are counted, want %d", got, len(prompt))
	}
}

func requests(tr *remote.Tier) (n int64) {
	for _, s := range tr.PeerStats().Servers {
		n += s.Client.Batches
	}
	return n
}

// Puts beyond the bound are dropped at once and counted.
func TestWritesAreBounded(t *testing.T) {
	f := tiertest.NewFormat(t)
	ps := newPeers(t, 1, 1<<22)
	c := ps.config(f)
	c.Writes = 1
	tr := open(t, c)
	ps[0].silent.Store(true)
	image := tiertest.Buffer(t, f.Layout.ImageBytes())
	tiertest.Seal(t, f, image.Bytes(), tiertest.Key(1), 0)
	first := make(chan error)
	started := requests(tr)
	go func() { first <- tr.Put(t.Context(), tiertest.Key(1), image) }()
	for requests(tr) == started {
		time.Sleep(time.Millisecond)
	}
	if err := tr.Put(t.Context(), tiertest.Key(1), image); !errors.Is(err, errdefs.ErrBusy) || tr.PeerStats().Dropped != 1 {
		t.Errorf("second put: %v, %d dropped", err, tr.PeerStats().Dropped)
	}
	ps[0].silent.Store(false)
	must(t, <-first)
}

func TestConfigRefuses(t *testing.T) {
	f := tiertest.NewFormat(t)
	for name, tune := range map[string]func(c *remote.Config){
		"no servers":       func(c *remote.Config) { c.Servers = "" },
		"no port":          func(c *remote.Config) { c.Servers = "a" },
		"a server twice":   func(c *remote.Config) { c.Servers = "a:1,a:1=2" },
		"no formats":       func(c *remote.Config) { c.Formats = nil },
		"negative timeout": func(c *remote.Config) { c.Timeout = -1 },
		"negative breaker": func(c *remote.Config) { c.Breaker.Probes = -1 },
		"token, no CA":     func(c *remote.Config) { c.TokenFile = "/none" },
	} {
		c := remote.Config{Servers: "a:1", Formats: block.Formats{f}}
		tune(&c)
		if _, err := remote.Open(t.Context(), c); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEvents(t *testing.T) {
	f, events := tiertest.NewFormat(t), new(tier.Events)
	ps := newPeers(t, 2, 1<<20)
	c := ps.config(f)
	c.Events = events
	tiertest.CheckEvents(t, open(t, c), events, f, func(key block.Key) { ps.damage(t, f, key) })
}
