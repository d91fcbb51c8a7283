package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/blockio/blockiotest"
	"github.com/kvlane/kvlane/blockio/gateway"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/channel"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/wire"
)

const identity = 5

// peer is one side of a connection whose frames and work requests the test makes. It has memory of
// its own.
type peer struct {
	nc     net.Conn
	w      *wire.FrameWriter
	r      *wire.FrameReader
	nic    *registry.Registry
	ch     *channel.Channel
	memory *mem.Region
	info   rdma.MRInfo
}

func (f *fabric) peer(tb testing.TB, nc net.Conn, access rdma.Access) *peer {
	tb.Helper()
	p := &peer{nc: nc, w: wire.NewFrameWriter(nc), r: wire.NewFrameReader(nc, 1<<20, 1<<20), nic: f.nic(tb, f.names[0])}
	p.memory = f.pinned(tb, p.nic, 1<<16, access)
	m, err := p.nic.Acquire(mem.All(p.memory), access)
	must(tb, err)
	p.info = m.Info()
	m.Release()
	p.ch, err = channel.Open(channel.Options{NIC: p.nic, Depth: 8, Receives: 8, Connect: rdma.ConnectOptions{RetryCount: 1}})
	must(tb, err)
	tb.Cleanup(func() { must(tb, p.ch.Close()) })
	return p
}

// pinned returns registered host-pinned memory.
func (f *fabric) pinned(tb testing.TB, nic *registry.Registry, n int64, access rdma.Access) *mem.Region {
	tb.Helper()
	r, err := f.dev.AllocHost(n)
	must(tb, err)
	must(tb, nic.Register(rdma.MROptions{Access: access}, r))
	tb.Cleanup(func() {
		must(tb, registry.Unregister(context.Background(), []*registry.Registry{nic}, r))
		must(tb, f.dev.Free(r))
	})
	return r
}

func (p *peer) write(tb testing.TB, body []byte, err error) {
	tb.Helper()
	must(tb, err)
	must(tb, errors.Join(p.w.Append(body), p.w.Flush()))
}

// post posts a request and returns its completion.
func (p *peer) post(tb testing.TB, wr rdma.SendWR) rdma.WC {
	tb.Helper()
	wr.Flags |= rdma.SendSignaled
	_, err := p.ch.Pairs[0].Post([]rdma.SendWR{wr})
	must(tb, err)
	var wcs [1]rdma.WC
	until(tb, "a request does not complete", func() bool {
		n, err := p.ch.CQ.Poll(wcs[:])
		must(tb, err)
		return n > 0
	})
	return wcs[0]
}

func until(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(testkit.Patience()); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatal(what)
		}
	}
}

// rogue is a server that accepts the requests of one client and gives no results. It ignores the
// end of the connection.
type rogue struct {
	*peer
	got chan *blockio.Request // requests that arrived by RDMA
}

func (f *fabric) rogue(tb testing.TB) (*rogue, func(context.Context) (net.Conn, error)) {
	tb.Helper()
	s := &rogue{got: make(chan *blockio.Request, 1)}
	s.peer = f.peer(tb, nil, rdma.AccessLocalWrite)
	return s, listen(tb, func(nc net.Conn) {
		s.nc, s.w, s.r = nc, wire.NewFrameWriter(nc), wire.NewFrameReader(nc, 1<<20, 1<<20)
		var h blockio.Hello
		body, _, err := s.r.Next()
		must(tb, err)
		must(tb, h.Decode(body))
		hr := blockio.HelloResult{ID: h.ID, Status: blockio.StatusOK, Boot: [16]byte{1}, Limits: h.Limits}
		body, err = hr.Append(nil)
		s.write(tb, body, err)
		var q blockio.Request
		body, _, err = s.r.Next()
		must(tb, err)
		must(tb, q.Decode(body, &h.Limits))
		must(tb, s.ch.Pairs[0].Connect(q.Endpoint))
		_, err = s.ch.Pairs[0].QP.PostRecv([]rdma.RecvWR{{SGEs: []rdma.SGE{s.info.SGE(0, 8192)}}})
		must(tb, err)
		var p blockio.Packer
		body, err = p.Result(nil, &blockio.Result{Op: q.Op, ID: q.ID, Status: blockio.StatusOK, Endpoint: s.ch.Pairs[0].Endpoint}, &h.Limits)
		s.write(tb, body, err)
		var wcs [1]rdma.WC
		until(tb, "no request arrives", func() bool {
			n, err := s.ch.Receives.Poll(wcs[:])
			must(tb, err)
			return n > 0
		})
		got := new(blockio.Request)
		must(tb, got.Decode(s.memory.Bytes()[:wcs[0].ByteLen], &h.Limits))
		s.got <- got
	})
}

// overwrite writes to the memory of a request, and returns the completion.
func (s *rogue) overwrite(tb testing.TB, q *blockio.Request) rdma.WC {
	tb.Helper()
	e := &q.Entries[0]
	return s.post(tb, rdma.SendWR{RKey: e.MemoryKey, RemoteAddr: uint64(e.Addr), SGEs: []rdma.SGE{s.info.SGE(0, uint32(e.Length))}})
}

// retrieve starts a retrieve from a server. cancel cancels it.
func (f *fabric) retrieve(tb testing.TB, dial func(context.Context) (net.Conn, error)) (c *blockio.Client, ended <-chan error, cancel func(), memory []byte) {
	tb.Helper()
	o := f.client(tb)
	r := f.pinned(tb, o.NIC, 4096, blockio.PeerAccess)
	c, err := blockio.NewClient(blockio.ClientOptions{Dial: dial, RDMA: o, Retries: -1, Timeout: testkit.Patience(), Formats: []blockio.Format{{Identity: block.Digest{identity}, ShardBytes: []int64{8192}}}})
	must(tb, err)
	tb.Cleanup(func() { must(tb, c.Close(context.Background())) })
	ctx, cancel := context.WithCancel(tb.Context())
	end := make(chan error, 1)
	go func() {
		var errs [1]error
		c.Retrieve(ctx, []blockio.Piece{{Key: block.Key{1}, Identity: identity, Mem: mem.All(r)}}, errs[:])
		end <- errs[0]
	}()
	return c, end, cancel, r.Bytes()
}

// A server that is stopped, confirms nothing and writes later changes no memory that was reused.
func TestServerThatWritesAfterTheFenceChangesNothing(t *testing.T) {
	f := softFabric(t, soft.Options{})
	s, dial := f.rogue(t)
	c, ended, cancel, memory := f.retrieve(t, dial)
	q := <-s.got
	cancel()
	if err := <-ended; !errors.Is(err, errdefs.ErrCanceled) {
		t.Errorf("a retrieve without a result: %v", err)
	}
	if n := c.Stats().FenceTimeouts; n != 1 {
		t.Errorf("%d fences closed the connection", n)
	}
	for i := range memory {
		memory[i] = 0xee
	}
	if wc := s.overwrite(t, q); wc.Err() == nil {
		t.Error("a write after the fence succeeded")
	}
	if !bytes.Equal(memory, bytes.Repeat([]byte{0xee}, len(memory))) {
		t.Error("reused memory was changed")
	}
}

// A write that is in progress at the fence delays the end of the call.
func TestFenceWaitsForWritesInProgress(t *testing.T) {
	m := &slowMover{began: make(chan struct{}), release: make(chan struct{})}
	f := softFabric(t, soft.Options{Mover: m, DrainTimeout: 10 * time.Millisecond})
	s, dial := f.rogue(t)
	_, ended, cancel, memory := f.retrieve(t, dial)
	q := <-s.got
	m.slow.Store(true)
	e := &q.Entries[0]
	_, err := s.ch.Pairs[0].Post([]rdma.SendWR{{RKey: e.MemoryKey, RemoteAddr: uint64(e.Addr), SGEs: []rdma.SGE{s.info.SGE(0, uint32(e.Length))}}})
	must(t, err)
	<-m.began
	cancel()
	select {
	case err := <-ended:
		t.Errorf("the call ended while a NIC writes its memory: %v", err)
	case <-time.After(500 * time.Millisecond):
	}
	close(m.release)
	if err := <-ended; !errors.Is(err, errdefs.ErrCanceled) {
		t.Errorf("a retrieve without a result: %v", err)
	}
	want := bytes.Clone(memory)
	time.Sleep(20 * time.Millisecond)
	if !bytes.Equal(memory, want) {
		t.Error("memory changes after the end of the call")
	}
}

// connect connects a client of hand-made requests to a server.
func (f *fabric) connect(tb testing.TB, g *gateway.Gateway, s *blockiotest.Server, access rdma.Access) (*peer, *blockio.Limits) {
	tb.Helper()
	dial := listen(tb, func(nc net.Conn) { s.Serve(tb, g.Open(nc, true)) })
	nc, err := dial(tb.Context())
	must(tb, err)
	tb.Cleanup(func() { _ = nc.Close() })
	p := f.peer(tb, nc, access)
	l := blockio.DefaultLimits()
	h := blockio.Hello{ID: 1, RemainingMillis: 1000, Client: [16]byte{1}, Limits: l, Formats: []blockio.Format{{Identity: block.Digest{identity}, ShardBytes: []int64{8192}}}}
	body, err := h.Append(nil)
	p.write(tb, body, err)
	_, _, err = p.r.Next()
	must(tb, err)
	return p, &l
}

func (p *peer) attach(tb testing.TB, l *blockio.Limits) {
	tb.Helper()
	var pack blockio.Packer
	body, err := pack.Request(nil, &blockio.Request{Op: blockio.OpAttach, ID: 2, RemainingMillis: 1000, Endpoint: p.ch.Pairs[0].Endpoint}, l)
	p.write(tb, body, err)
}

func (p *peer) attached(tb testing.TB, l *blockio.Limits) {
	tb.Helper()
	p.attach(tb, l)
	body, _, err := p.r.Next()
	must(tb, err)
	var r blockio.Result
	must(tb, r.Decode(body, l))
	must(tb, r.Status.Err())
	must(tb, p.ch.Pairs[0].Connect(r.Endpoint))
}

// send sends a request by RDMA.
func (p *peer) send(tb testing.TB, q *blockio.Request, l *blockio.Limits) {
	tb.Helper()
	var pack blockio.Packer
	body, err := pack.Request(nil, q, l)
	must(tb, err)
	copy(p.memory.Bytes()[1<<15:], body)
	wc := p.post(tb, rdma.SendWR{Opcode: rdma.WRSend, SGEs: []rdma.SGE{p.info.SGE(1<<15, uint32(len(body)))}})
	must(tb, wc.Err())
}

// The result of a cancellation follows the writes of the cancelled request.
func TestCancellationFollowsWrites(t *testing.T) {
	m := &slowMover{began: make(chan struct{}, 8), release: make(chan struct{})}
	f := softFabric(t, soft.Options{Mover: m})
	s := blockiotest.NewServer(blockio.DefaultLimits())
	s.Behave(blockiotest.Behavior{Hold: make(chan struct{})})
	p, l := f.connect(t, f.gateway(t, gateway.Options{}), s, blockio.PeerAccess)
	p.attached(t, l)
	_, err := p.ch.Pairs[0].QP.PostRecv([]rdma.RecvWR{{}})
	must(t, err)
	p.send(t, &blockio.Request{
		Op: blockio.OpRetrieve, ID: 3, RemainingMillis: 60000, Addressed: true, ResponseAddr: mem.DevAddr(p.info.Addr), ResponseKey: p.info.RKey,
		Entries: []blockio.Entry{{Key: block.Key{1}, Identity: blockio.IdentityHash(block.Digest{identity}), Length: 4096, Addr: mem.DevAddr(p.info.Addr + 4096), MemoryKey: p.info.RKey}},
	}, l)
	until(t, "the server got no retrieve", func() bool { return s.Requests(blockio.OpRetrieve) > 0 })
	m.slow.Store(true)
	var pack blockio.Packer
	body, err := pack.Request(nil, &blockio.Request{Op: blockio.OpCancel, ID: 4, RemainingMillis: 1000, IDs: []uint64{3}}, l)
	p.write(t, body, err)
	<-m.began // the flag is being written
	must(t, p.nc.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
	if _, err := p.nc.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the cancellation is confirmed while a write is in progress: %v", err)
	}
	must(t, p.nc.SetReadDeadline(time.Time{}))
	m.slow.Store(false)
	close(m.release)
	_, _, err = p.r.Next()
	must(t, err)
	if word := hostmem.LoadUint64(p.memory.Bytes()); word != blockio.CompletionWord(3, false) {
		t.Errorf("the flag has the word %#x after the cancellation", word)
	}
}

// Clients with wrong keys, addresses and requests lose their connection, and are counted. The
// gateway neither reads nor writes memory that the client has not registered for it.
func TestHostileClientsAreRefused(t *testing.T) {
	f := softFabric(t, soft.Options{})
	other := f.nic(t, f.names[0])
	secret := f.pinned(t, other, 4096, blockio.PeerAccess)
	m, err := other.Acquire(mem.All(secret), blockio.PeerAccess)
	must(t, err)
	foreign := m.Info()
	m.Release()
	store := func(p *peer, addr uint64, key uint32) *blockio.Request {
		return &blockio.Request{
			Op: blockio.OpStore, ID: 3, RemainingMillis: 1000, Addressed: true, ResponseAddr: mem.DevAddr(p.info.Addr), ResponseKey: p.info.RKey,
			Entries: []blockio.Entry{{Key: block.Key{1}, Identity: identity, Length: 4096, Addr: mem.DevAddr(addr), MemoryKey: key}},
		}
	}
	for name, c := range map[string]struct {
		access rdma.Access
		attack func(p *peer, l *blockio.Limits)
	}{
		"a guessed key":              {blockio.PeerAccess, func(p *peer, l *blockio.Limits) { p.send(t, store(p, p.info.Addr, p.info.RKey^0x5a00), l) }},
		"a key of another client":    {blockio.PeerAccess, func(p *peer, l *blockio.Limits) { p.send(t, store(p, foreign.Addr, foreign.RKey), l) }},
		"memory that is too short":   {blockio.PeerAccess, func(p *peer, l *blockio.Limits) { p.send(t, store(p, p.info.Addr+1<<16-100, p.info.RKey), l) }},
		"memory without permissions": {rdma.AccessLocalWrite, func(p *peer, l *blockio.Limits) { p.send(t, store(p, p.info.Addr, p.info.RKey), l) }},
		"a flag of another client": {blockio.PeerAccess, func(p *peer, l *blockio.Limits) {
			q := store(p, p.info.Addr, p.info.RKey)
			q.ResponseAddr, q.ResponseKey = mem.DevAddr(foreign.Addr), foreign.RKey
			p.send(t, q, l)
		}},
		"no addresses": {blockio.PeerAccess, func(p *peer, l *blockio.Limits) {
			p.send(t, &blockio.Request{Op: blockio.OpStat, ID: 3, RemainingMillis: 1000}, l)
		}},
		"a second queue pair": {blockio.PeerAccess, func(p *peer, l *blockio.Limits) { p.attach(t, l) }},
	} {
		t.Run(name, func(t *testing.T) {
			g := f.gateway(t, gateway.Options{})
			p, l := f.connect(t, g, blockiotest.NewServer(blockio.DefaultLimits()), c.access)
			p.attached(t, l)
			c.attack(p, l)
			if _, _, err := p.r.Next(); err == nil {
				t.Error("the gateway answered")
			}
			until(t, "the client was not counted", func() bool { return g.Stats().Refused == 1 })
			if !bytes.Equal(secret.Bytes(), make([]byte, 4096)) {
				t.Error("memory of another client was changed")
			}
		})
	}
}
