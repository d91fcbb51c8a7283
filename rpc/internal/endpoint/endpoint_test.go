package endpoint_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/internal/endpoint"
	"github.com/kvlane/kvlane/rpc/internal/hello"
)

// random returns a stream of bytes that depends on the seed.
func random(seed uint64, n int64) []byte {
	rng, b := rand.New(rand.NewPCG(seed, 7)), make([]byte, (n+7)&^7)
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], rng.Uint64())
	}
	return b[:n]
}

// Both sides send many messages of random lengths at a time, from registered and from other memory.
// All bytes arrive in order, also when completions are late, and with few blocks.
func TestBothDirections(t *testing.T) {
	const total = 600 << 10
	for name, c := range map[string]struct {
		o       soft.Options
		version hello.Version
		regions int
		polling bool
	}{
		"v2":         {version: hello.V2, regions: 8},
		"v3":         {version: hello.V3, regions: 8},
		"few blocks": {version: hello.V3, regions: 1},
		"polling":    {version: hello.V2, regions: 8, polling: true},
		"late":       {o: soft.Options{Schedule: &soft.Schedule{Seed: 5}}, version: hello.V2, regions: 2},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t, c.o, c.regions)
			a.options.Polling, b.options.Polling = c.polling, c.polling
			var memory []*mem.Region
			for i, s := range []*side{a, b} {
				memory = append(memory, pageable(t, s, total))
				copy(memory[i].Bytes(), random(uint64(i), total))
			}
			k := connect(t, a, b, c.version)
			var group sync.WaitGroup
			defer group.Wait()
			var pending atomic.Int64
			for i, e := range []*endpoint.Endpoint{k.client, k.server} {
				group.Go(func() { sendAll(t, e, memory[i], &pending) })
			}
			for i, e := range []*endpoint.Endpoint{k.server, k.client} {
				group.Go(func() {
					if got := receive(t, e, total); !bytes.Equal(got, random(uint64(i), total)) {
						t.Errorf("the bytes of side %d differ", i)
					}
				})
			}
			group.Wait()
			for end := time.Now().Add(testkit.Patience()); pending.Load() > 0 && k.client.Err() == nil && k.server.Err() == nil && time.Now().Before(end); time.Sleep(time.Millisecond) {
			}
			if n := pending.Load(); n != 0 {
				t.Errorf("the memory of %d pieces is not released while the connection is idle (%v, %v)", n, k.client.Err(), k.server.Err())
			}
			s, r := k.client.Stats(), k.server.Stats()
			if s.Sends != r.Receives || r.Sends != s.Receives || s.Solicited == 0 || s.CopiedBytes == 0 {
				t.Errorf("client %+v, server %+v", s, r)
			}
		})
	}
}

// sendAll sends the memory in random pieces, several for each call.
func sendAll(t *testing.T, e *endpoint.Endpoint, memory *mem.Region, pending *atomic.Int64) {
	rng := rand.New(rand.NewPCG(3, uint64(memory.Len())))
	for off := int64(0); off < memory.Len(); {
		var list []endpoint.Piece
		for range 1 + rng.IntN(40) {
			n := min(1+rng.Int64N(3*blockBytes), memory.Len()-off)
			if rng.IntN(2) == 0 {
				n = min(n, 1+rng.Int64N(200))
			}
			x := mem.Extent{Region: memory, Off: off, Len: n}
			p := endpoint.Piece{Extent: x, Done: func() { pending.Add(-1) }}
			if pending.Add(1); rng.IntN(3) == 0 {
				p.Bytes, p.Extent = bytes.Clone(x.Bytes()), mem.Extent{}
			}
			list = append(list, p)
			off += n
		}
		if err := e.Send(list); err != nil {
			t.Error(err)
			return
		}
	}
}

// pageable returns memory that is registered with the NIC of a side.
func pageable(t *testing.T, s *side, n int64) *mem.Region {
	t.Helper()
	b, err := hostmem.Alloc(n)
	check(t, err)
	r, err := hostmem.Region(b)
	check(t, err)
	check(t, s.nic.Register(rdma.MROptions{Access: rdma.AccessLocalWrite}, r))
	t.Cleanup(func() {
		check(t, s.nic.Unregister(context.Background(), r))
		check(t, hostmem.Free(b))
	})
	return r
}

// A sender stops when the receiver takes no bytes: what waits is bounded by the receive queue. It
// continues when the receiver does.
func TestDefectUnboundedPendingList(t *testing.T) {
	a, b := pair(t, soft.Options{}, 8)
	k := connect(t, a, b, hello.V2)
	const total = 100 * blockBytes
	sent := make(chan error, 1)
	go func() { sent <- k.client.Send([]endpoint.Piece{{Bytes: random(1, total)}}) }()
	var last int64
	for n := int64(-1); n != last || n == 0; time.Sleep(50 * time.Millisecond) {
		last, n = n, k.server.Stats().Receives
	}
	if last > 16 || b.receive.Stats().Lent > 16 {
		t.Errorf("%d messages wait in %d blocks", last, b.receive.Stats().Lent)
	}
	if got := receive(t, k.server, total); !bytes.Equal(got, random(1, total)) {
		t.Error("the bytes differ")
	}
	check(t, <-sent)
}

// While all blocks are in use the peer waits, and continues after their release.
func TestDefectBlocksExhausted(t *testing.T) {
	a, b := pair(t, soft.Options{}, 1)
	k := connect(t, a, b, hello.V2)
	const total = 64 * blockBytes
	sent := make(chan error, 1)
	go func() { sent <- k.client.Send([]endpoint.Piece{{Bytes: random(1, total)}}) }()
	var held chain.Chain
	defer held.Release()
	for b.receive.Stats().Waiting == 0 {
		// The wait for a block may begin after the last bytes have come.
		if err := k.server.Receive(&held, 10*time.Millisecond); err != nil && !errors.Is(err, errdefs.ErrBusy) {
			t.Fatal(err)
		}
	}
	select {
	case err := <-sent:
		t.Fatalf("everything is sent to %d blocks: %v", b.receive.Stats().Blocks, err)
	case <-time.After(50 * time.Millisecond):
	}
	got, err := held.Bytes()
	check(t, err)
	held.Release()
	got = append(got, receive(t, k.server, total-int64(len(got)))...)
	if !bytes.Equal(got, random(1, total)) {
		t.Error("the bytes differ")
	}
	check(t, <-sent)
}

// The memory of a piece is not released before its completion.
func TestZeroCopySendIsHeldUntilCompletion(t *testing.T) {
	m := &gatedMover{began: make(chan struct{}, 100), proceed: make(chan struct{})}
	a, b := pair(t, soft.Options{Mover: m}, 8)
	r := pageable(t, a, 3*blockBytes)
	k := connect(t, a, b, hello.V2)
	var done atomic.Bool
	m.gated.Store(true)
	check(t, k.client.Send([]endpoint.Piece{{Extent: mem.All(r), Done: func() { done.Store(true) }}}))
	<-m.began
	time.Sleep(20 * time.Millisecond)
	if done.Load() {
		t.Error("released before the NIC has read it")
	}
	m.gated.Store(false)
	close(m.proceed)
	receive(t, k.server, r.Len())
	for end := time.Now().Add(testkit.Patience()); !done.Load(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not released after the completion")
		}
	}
}

// gatedMover holds transfers back while gated is set, until proceed is closed.
type gatedMover struct {
	soft.CPUMover
	gated          atomic.Bool
	began, proceed chan struct{}
}

func (m *gatedMover) Move(t *soft.Transfer) {
	if m.gated.Load() {
		m.began <- struct{}{}
		<-m.proceed
	}
	m.CPUMover.Move(t)
}

func TestEndOfTCPEndsTheEndpoint(t *testing.T) {
	a, b := pair(t, soft.Options{}, 8)
	k := connect(t, a, b, hello.V2)
	check(t, k.nc[0].Close())
	var c chain.Chain
	if err := k.server.Receive(&c, testkit.Patience()); !errors.Is(err, io.EOF) {
		t.Errorf("the server receives %v", err)
	}
	if err := k.server.Send([]endpoint.Piece{{Bytes: []byte("x")}}); !errors.Is(err, io.EOF) {
		t.Errorf("the server sends: %v", err)
	}
	if err := k.client.Receive(&c, testkit.Patience()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the client receives %v", err)
	}
}

func TestBytesOnTCPEndTheEndpoint(t *testing.T) {
	a, b := pair(t, soft.Options{}, 8)
	k := connect(t, a, b, hello.V2)
	_, err := k.nc[0].Write([]byte("PRPC"))
	check(t, err)
	var c chain.Chain
	if err := k.server.Receive(&c, testkit.Patience()); !errors.Is(err, errdefs.ErrMismatch) {
		t.Errorf("the server receives %v", err)
	}
}

func TestSendOfUnregisteredMemory(t *testing.T) {
	a, b := pair(t, soft.Options{}, 8)
	k := connect(t, a, b, hello.V2)
	m, err := hostmem.Alloc(4096)
	check(t, err)
	defer func() { check(t, hostmem.Free(m)) }()
	r, err := hostmem.Region(m)
	check(t, err)
	done := 0
	list := []endpoint.Piece{{Bytes: []byte("x"), Done: func() { done++ }}, {Extent: mem.All(r), Done: func() { done++ }}, {Bytes: []byte("y"), Done: func() { done++ }}}
	if err := k.client.Send(list); !errors.Is(err, errdefs.ErrNotFound) || done != 3 {
		t.Errorf("%v, %d pieces done", err, done)
	}
}

// A failure of any verb of either side ends both endpoints or falls back, and leaves nothing.
func TestVerbsFail(t *testing.T) {
	for _, op := range []string{
		soft.OpCreateChannel, soft.OpCreateCQ, soft.OpCreateQP, soft.OpModifyQP, soft.OpPostRecv, soft.OpPostSend, soft.OpNotify, soft.OpPoll,
		soft.OpWaitChannel, soft.OpSend, soft.OpRegMR,
	} {
		t.Run(op, func(t *testing.T) {
			injected := 0
			for n := range 40 {
				plan := fault.New(uint64(n), fault.Nth(op, n).Fail(nil))
				exchange(t, plan)
				if plan.Injected() == 0 {
					break
				}
				injected++
			}
			if injected == 0 {
				t.Error("nothing was injected")
			}
		})
	}
}

// exchange connects two sides and echoes bytes, until the end or a failure.
func exchange(t *testing.T, plan *fault.Plan) {
	t.Helper()
	p, err := soft.New(soft.Options{Faults: plan})
	check(t, err)
	defer func() { check(t, p.Close()) }()
	t.Run("run", func(t *testing.T) {
		a, b := newSide(t, p, "soft0", 8), newSide(t, p, "soft0", 8)
		a.options.Stall, b.options.Stall = 5*time.Second, 5*time.Second
		nc, ns := tcp(t)
		accepted := make(chan struct{})
		go func() {
			defer close(accepted)
			e, _, err := endpoint.Accept(context.Background(), ns, &b.options, 5*time.Second)
			if e == nil {
				_ = ns.Close()
				return
			}
			var c chain.Chain
			for c.Len() < 20000 && err == nil {
				err = e.Receive(&c, 5*time.Second)
			}
			if got, _ := c.Bytes(); err == nil {
				err = e.Send([]endpoint.Piece{{Bytes: got}})
			}
			c.Release()
			if err == nil {
				err = e.Receive(&c, 5*time.Second) // the end
			}
			e.Close(err)
		}()
		e, refusal, err := endpoint.Dial(t.Context(), nc, hello.V3, &a.options)
		if e == nil {
			_ = nc.Close()
			if plan.Injected() == 0 {
				t.Errorf("%v, %v", refusal, err)
			}
			<-accepted
			return
		}
		var done atomic.Int64
		err = e.Send([]endpoint.Piece{{Bytes: random(1, 20000), Done: func() { done.Add(1) }}})
		var c chain.Chain
		for c.Len() < 20000 && err == nil {
			err = e.Receive(&c, 5*time.Second)
		}
		if got, _ := c.Bytes(); err == nil && !bytes.Equal(got, random(1, 20000)) {
			t.Error("the bytes differ")
		}
		c.Release()
		e.Close(errEnd)
		if n := done.Load(); n != 1 {
			t.Errorf("a piece is done %d times", n)
		}
		if err != nil && plan.Injected() == 0 {
			t.Error(err)
		}
		<-accepted
	})
}
