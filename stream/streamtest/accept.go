package streamtest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// testOrder makes each batch copy the bytes that the previous one has written, so that a wrong
// order of any two batches produces wrong bytes.
func testOrder(t *testing.T, env Env) {
	w := newWorld(t, env, 64, 20)
	const n = 5000
	regions := []*mem.Region{w.region(env.A, n), w.region(env.B, n), w.region(env.B, n), w.region(env.A, n)}
	var tickets []*stream.Ticket
	for i := range 200 {
		dst, src := regions[(i+1)%len(regions)], regions[i%len(regions)]
		// Alternate between one copy and many, for which a stream may choose different paths.
		b := whole(dst, src)
		if i%3 != 0 {
			b = w.scatter(dst, src, 1+w.rng.IntN(40), func(int) int64 { return 1 + w.rng.Int64N(100) })
		}
		tickets = append(tickets, w.submit(b))
	}
	for i := len(tickets) - 1; i >= 0; i -= 1 + i/3 {
		w.ok(tickets[i])
		for j := range i {
			if !resolved(tickets[j]) {
				t.Fatalf("ticket %d resolved before ticket %d", i+1, j+1)
			}
		}
	}
	for i, ticket := range tickets {
		if ticket.ID() != uint64(i+1) {
			t.Fatalf("ticket %d has number %d", i+1, ticket.ID())
		}
	}
	w.check()
}

func testConcurrent(t *testing.T, env Env) {
	w := newWorld(t, env, 16, 21)
	const workers, each, n = 8, 40, 512
	var mu sync.Mutex
	seen := make(map[uint64]*stream.Ticket)
	var all sync.WaitGroup
	for range workers {
		r, f := w.region(env.B, each*n), w.region(env.A, each*n)
		w.apply(whole(r, f))
		all.Go(func() {
			last := uint64(0)
			for i := range int64(each) {
				ticket, err := w.s.Submit(t.Context(), &mem.Batch{
					Dst: []mem.Extent{{Region: r, Off: i * n, Len: n}}, Src: []mem.Extent{{Region: f, Off: i * n, Len: n}},
				})
				if err != nil {
					t.Errorf("submit: %v", err)
					return
				}
				if ticket.ID() <= last {
					t.Errorf("ticket %d after %d", ticket.ID(), last)
				}
				last = ticket.ID()
				mu.Lock()
				seen[last] = ticket
				mu.Unlock()
				if i%8 == 0 {
					if err := ticket.Wait(t.Context()); err != nil {
						t.Errorf("ticket: %v", err)
					}
				}
			}
		})
	}
	all.Wait()
	if len(seen) != workers*each {
		t.Errorf("%d different tickets of %d", len(seen), workers*each)
	}
	for _, ticket := range seen {
		w.ok(ticket)
	}
	w.check()
}

func testBadBatches(t *testing.T, env Env) {
	w := newWorld(t, env, 0, 22)
	r, f := w.region(env.B, 1000), w.region(env.A, 1000)
	good := func() *mem.Batch {
		return w.scatter(r, f, 10, func(int) int64 { return 8 })
	}
	bad := map[string]*mem.Batch{}
	add := func(name string, change func(b *mem.Batch)) {
		b := good()
		change(b)
		bad[name] = b
	}
	last := func(b *mem.Batch) int { return len(b.Dst) - 1 }
	add("missing source", func(b *mem.Batch) { b.Src = b.Src[:last(b)] })
	add("lengths differ", func(b *mem.Batch) { b.Src[last(b)].Len-- })
	add("destination outside", func(b *mem.Batch) { b.Dst[last(b)].Off = 1000 - 7 })
	add("source outside", func(b *mem.Batch) { b.Src[last(b)].Off = -1 })
	add("no destination region", func(b *mem.Batch) { b.Dst[last(b)].Region = nil })
	add("no source region", func(b *mem.Batch) { b.Src[last(b)].Region = nil })
	add("nil dependency", func(b *mem.Batch) { b.After = []mem.Dependency{nil} })
	add("paged without direction", func(b *mem.Batch) { b.Paged = &mem.Paged{} })
	add("page outside", func(b *mem.Batch) {
		b.Paged = w.paged(mem.ToPages, env.A, env.B, 4, []int64{16}).Paged
		b.Paged.Groups[0].Pairs[3].Page = 7
	})
	add("slot outside", func(b *mem.Batch) {
		b.Paged = w.paged(mem.ToPages, env.A, env.B, 4, []int64{16}).Paged
		b.Paged.Groups[0].Pairs[3].Slot = 1 << 31
	})
	add("paged without regions", func(b *mem.Batch) {
		b.Paged = w.paged(mem.ToPages, env.A, env.B, 4, []int64{16}).Paged
		b.Paged.Groups[0].Slots.Region = nil
	})
	if u := env.Unreachable; u != nil {
		add("unreachable source", func(b *mem.Batch) { b.Src[last(b)] = mem.Extent{Region: u, Len: 8} })
		add("unreachable destination", func(b *mem.Batch) { b.Dst[last(b)] = mem.Extent{Region: u, Len: 8} })
		add("unreachable plane", func(b *mem.Batch) {
			b.Paged = w.paged(mem.ToPages, env.A, env.B, 4, []int64{16}).Paged
			b.Paged.Groups[0].Planes[0] = mem.Plane{Region: u, Stride: 1, Bytes: 1}
		})
	}
	strange, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindFile, Device: mem.NoDevice, Len: 1000, File: strangeFile{}})
	if err != nil {
		t.Fatal(err)
	}
	add("strange file as source", func(b *mem.Batch) { b.Src[last(b)].Region = strange })
	add("strange file as destination", func(b *mem.Batch) { b.Dst[last(b)].Region = strange })
	add("strange file as slots", func(b *mem.Batch) {
		b.Paged = w.paged(mem.ToPages, env.A, env.B, 4, []int64{16}).Paged
		b.Paged.Groups[0].Slots = mem.Slots{Region: strange, Stride: 21}
	})
	bad["no batch"] = nil
	for name, b := range bad {
		ticket, err := w.s.Submit(t.Context(), b)
		if ticket != nil || !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: ticket %v, error %v", name, ticket != nil, err)
		}
	}
	ticket := w.submit(good())
	w.ok(ticket)
	if ticket.ID() != 1 {
		t.Errorf("the first good batch is ticket %d", ticket.ID())
	}
	w.check()
}

// strangeFile is a file that no stream supports.
type strangeFile struct{}

func (strangeFile) Name() string { return "strange" }

func testFull(t *testing.T, env Env) {
	const depth = 3
	w := newWorld(t, env, depth, 23)
	r, f := w.region(env.B, 100), w.region(env.A, 100)
	g := newGate()
	for range depth {
		w.submit(whole(r, f, g))
	}
	cause := errors.New("patience is over")
	b, ticket, err := whole(f, w.region(env.B, 50)), (*stream.Ticket)(nil), cause
	// Without ErrBusy the context has ended before Submit looked for a slot.
	for wait := pause; errors.Is(err, cause) && !errors.Is(err, errdefs.ErrBusy) && wait < 10*time.Second; wait *= 2 {
		ctx, cancel := context.WithTimeoutCause(t.Context(), wait, cause)
		ticket, err = w.s.Submit(ctx, b)
		cancel()
	}
	if ticket != nil || !errors.Is(err, cause) || !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("a full stream answered %v, %v", ticket != nil, err)
	}

	// A waiting Submit receives the slot that a completion frees.
	waited := make(chan *stream.Ticket, 1)
	go func() {
		ticket, err := w.s.Submit(deadline(t), &mem.Batch{})
		if err != nil {
			t.Errorf("submit: %v", err)
		}
		waited <- ticket
	}()
	select {
	case <-waited:
		t.Error("a full stream accepted a batch")
	case <-time.After(pause):
	}
	g.open(nil)
	if ticket := <-waited; ticket != nil {
		w.ok(ticket)
		if ticket.ID() != depth+1 {
			t.Errorf("ticket %d after %d: the refused batch took a number", ticket.ID(), depth)
		}
	}
	w.check()
}

func testEndedContext(t *testing.T, env Env) {
	w := newWorld(t, env, 0, 24)
	cause := errors.New("over before it began")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	ticket, err := w.s.Submit(ctx, whole(w.region(env.B, 10), w.region(env.A, 10)))
	if ticket != nil || !errors.Is(err, cause) || errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("ticket %v, error %v", ticket != nil, err)
	}
	w.ok(w.submit(&mem.Batch{}))
	w.check()
}

func testWaitGivesUp(t *testing.T, env Env) {
	w := newWorld(t, env, 0, 25)
	g := newGate()
	ticket := w.submit(whole(w.region(env.B, 100), w.region(env.A, 100), g))
	cause := errors.New("no time for this")
	ctx, cancel := context.WithTimeoutCause(t.Context(), pause, cause)
	defer cancel()
	if err := ticket.Wait(ctx); !errors.Is(err, cause) {
		t.Errorf("wait: %v", err)
	}
	if resolved(ticket) || ticket.Err() != nil {
		t.Errorf("giving up changed the ticket: %v", ticket.Err())
	}
	g.open(nil)
	w.ok(ticket)
	w.check()
}
