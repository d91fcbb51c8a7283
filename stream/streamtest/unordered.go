package streamtest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// testOutOfOrder checks that batches can complete before an earlier one that waits for a
// dependency.
func testOutOfOrder(t *testing.T, env Env) {
	w := newWorld(t, env, 8, 120)
	r, f, g := w.region(env.B, 100), w.region(env.A, 100), newGate()
	blocked := w.submit(whole(r, f, g))
	empty := w.submit(&mem.Batch{})
	concurrent := w.submit(whole(w.region(env.A, 50_000), w.region(env.B, 50_000)))
	w.ok(concurrent)
	w.ok(empty)
	if c := empty.Completion(); c.Bytes != 0 || c.Path != stream.PathNone || c.Reason == "" {
		t.Errorf("completion of an empty batch: %+v", c)
	}
	if resolved(blocked) {
		t.Error("a batch did not wait for its dependency")
	}
	if blocked.ID() != 1 || empty.ID() != 2 || concurrent.ID() != 3 {
		t.Errorf("tickets %d, %d, %d", blocked.ID(), empty.ID(), concurrent.ID())
	}
	g.open(nil)
	w.ok(blocked)
	w.check()
}

func testBothWays(t *testing.T, env Env) {
	w := newWorld(t, env, 0, 122)
	b := w.scatter(w.region(env.B, 1<<17), w.region(env.A, 1<<17), 200, func(i int) int64 { return sizes[i%28] })
	back := w.scatter(w.region(env.A, 1<<17), w.region(env.B, 1<<17), 200, func(i int) int64 { return sizes[i%28] })
	b.Dst, b.Src = append(b.Dst, back.Dst...), append(b.Src, back.Src...)
	w.ok(w.submit(b))
	w.check()
}

func testWithin(t *testing.T, env Env) {
	w := newWorld(t, env, 0, 123)
	for _, m := range []Memory{env.A, env.B} {
		if ticket, err := w.s.Submit(t.Context(), whole(w.region(m, 10), w.region(m, 10))); ticket != nil || !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("a copy within %s memory: %v, %v", m.Name, ticket != nil, err)
		}
	}
	w.check()
}

// testAlone makes one of three batches fail.
func testAlone(t *testing.T, env Env) {
	w := newWorld(t, env, 0, 125)
	r, f := w.region(env.B, 1<<16), w.region(env.A, 1<<16)
	g := newGate()
	concurrent := w.submit(whole(w.region(env.B, 1<<16), f, g))
	native := errors.New("the bus fell off")
	env.failNext(native)
	failing := w.submitOnly(whole(r, f))
	w.fails(failing, native, fault.ErrInjected)
	if errors.Is(failing.Err(), errdefs.ErrBroken) {
		t.Errorf("a failure broke the stream: %v", failing.Err())
	}
	g.open(nil)
	w.ok(concurrent)
	w.ok(w.submit(whole(r, f)))
	w.check()
}

// testNthFails makes each operation of a batch fail, one per round, until all succeed. The ticket
// must report each failure, and the next batch must be unaffected.
func testNthFails(t *testing.T, env Env) {
	w := newWorld(t, env, 0, 126)
	list := w.scatter(w.region(env.B, 1<<20), w.region(env.A, 1<<20), 60, func(i int) int64 { return sizes[i%len(sizes)] })
	batches := []*mem.Batch{list, w.paged(mem.ToPages, env.A, env.B, 9, []int64{4096, 300}), whole(w.region(env.B, 300_000), w.region(env.A, 300_000))}
	for i, b := range batches {
		for n := 0; ; n += 1 + n/4 {
			env.Plan.Add(fault.Nth(env.Work, int(env.Plan.Seen(env.Work))+n).Fail(nil))
			before := env.Plan.Injected()
			err := w.submitOnly(b).Wait(deadline(t))
			failed := env.Plan.Injected() > before
			if failed != errors.Is(err, fault.ErrInjected) || !failed && err != nil {
				t.Fatalf("batch %d, work %d failed: %t; the ticket: %v", i, n, failed, err)
			}
			env.Plan.Clear()
			if !failed {
				w.apply(b)
				break
			}
		}
	}
	w.check()
}

// testUnorderedAbort cancels a batch while its work stalls. The ticket must resolve only after the
// work has ended, and its pages can then be reused.
func testUnorderedAbort(t *testing.T, env Env) {
	w := newWorld(t, env, 0, 127)
	r, f := w.region(env.B, 1<<16), w.region(env.A, 1<<16)
	env.stallNext()
	ticket := w.submitOnly(w.scatter(r, f, 500, func(int) int64 { return 100 }))
	if err := env.Plan.Await(deadline(t), 1); err != nil {
		t.Fatal(err)
	}
	ticket.Cancel()
	waiting := w.submitUntilDone()
	select {
	case <-ticket.Done():
		t.Fatal("the ticket resolved while its memory could still be written")
	case <-time.After(10 * pause):
	}
	env.Plan.Release()
	if err := ticket.Wait(deadline(t)); err != nil && !errors.Is(err, errdefs.ErrCanceled) {
		t.Fatal(err)
	}
	for _, ticket := range waiting {
		w.ok(ticket)
	}
	w.sentinelStays(r)
	w.ok(w.submit(whole(r, f)))
	w.check()
}

// submitUntilDone submits batches until one completes while other work stalls, and returns those
// that have not completed. A stream with ordered queues may queue some batches behind the stalled
// work, but not all.
func (w *world) submitUntilDone() (waiting []*stream.Ticket) {
	w.Helper()
	for range 8 {
		ticket := w.submit(whole(w.region(w.env.A, 100), w.region(w.env.B, 100)))
		ctx, cancel := context.WithTimeout(deadline(w), patience/10)
		err := ticket.Wait(ctx)
		cancel()
		if err == nil {
			return waiting
		}
		if ctx.Err() == nil {
			w.Fatal(err)
		}
		waiting = append(waiting, ticket)
	}
	w.Fatal("all work waits for what hangs")
	return nil
}
