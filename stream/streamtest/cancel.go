package streamtest

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

func testCancelUnstarted(t *testing.T, env Env) {
	w := newWorld(t, env, 0, 40)
	r, f, g := w.region(env.B, 100), w.region(env.A, 100), newGate()
	first := w.submitOnly(whole(r, f, g))
	second := w.submitOnly(whole(r, f, g))
	third := w.submit(whole(w.region(env.B, 100), f))
	second.Cancel()
	first.Cancel()
	first.Cancel()
	w.fails(first, errdefs.ErrCanceled)
	w.fails(second, errdefs.ErrCanceled)
	w.ok(third) // cancellation does not break the stream; the gate is still closed
	if c := first.Completion(); c.Bytes != 0 || c.Path != stream.PathNone {
		t.Errorf("completion of a cancelled batch: %+v", c)
	}
	w.check()
}

func testCancelResolved(t *testing.T, env Env) {
	w := newWorld(t, env, 0, 41)
	ticket := w.submit(whole(w.region(env.B, 100), w.region(env.A, 100)))
	w.ok(ticket)
	ticket.Cancel()
	if err := ticket.Err(); err != nil {
		t.Errorf("cancelling a resolved ticket: %v", err)
	}
	w.ok(w.submit(whole(w.region(env.B, 100), w.region(env.A, 100))))
	w.check()
}

// testCancelAnyTime cancels a large batch after various delays. It overwrites the destination as
// soon as the ticket has resolved, like the next user of the pages. The bytes must not change after
// that.
func testCancelAnyTime(t *testing.T, env Env) {
	const size, rounds = 64, 8
	extents := less(20_000)
	var canceled int
	for round := range rounds {
		w := newWorld(t, env, 0, 42+uint64(round))
		r, f := w.region(env.B, int64(extents*(size+8))), w.region(env.A, int64(extents*(size+8)))
		b := w.scatter(r, f, extents, func(int) int64 { return size })
		begin := make(chan struct{})
		var ticket *stream.Ticket
		go func() {
			defer close(begin)
			ticket = w.submitOnly(b)
		}()
		<-begin
		time.Sleep(time.Duration(round*round) * 40 * time.Microsecond)
		ticket.Cancel()
		switch err := ticket.Wait(deadline(t)); {
		case err == nil:
			w.apply(b)
			w.check()
		case errors.Is(err, errdefs.ErrCanceled):
			canceled++
		default:
			t.Fatal(err)
		}
		w.sentinelStays(r)
		// The stream still works.
		w.ok(w.submit(whole(f, w.region(env.B, 1000))))
		w.check()
	}
	t.Logf("%d of %d cancelled in time", canceled, rounds)
}

// sentinelStays overwrites r and checks that nothing else writes to it afterwards.
func (w *world) sentinelStays(r *mem.Region) {
	w.Helper()
	w.fill(r, bytes.Repeat([]byte{0xa5}, int(r.Len())))
	time.Sleep(pause)
	w.check()
}

// testAbortReuse cancels a batch while the device stalls in the middle of it, and then reuses its
// pages. The ticket must not resolve while the transfer runs.
func testAbortReuse(t *testing.T, env Env) {
	w := newWorld(t, env, 0, 60)
	r, f := w.region(env.B, 1<<16), w.region(env.A, 1<<16)
	env.stallNext()
	ticket := w.submitOnly(w.scatter(r, f, 500, func(int) int64 { return 100 }))
	behind := w.submitOnly(whole(r, f))
	if err := env.Plan.Await(deadline(t), 1); err != nil {
		t.Fatal(err)
	}
	ticket.Cancel()
	behind.Cancel()
	select {
	case <-ticket.Done():
		t.Fatal("the ticket resolved while the device could still write its memory")
	case <-behind.Done():
		t.Fatal("a ticket resolved before the one before it")
	case <-time.After(10 * pause):
	}
	env.Plan.Release()
	if err := ticket.Wait(deadline(t)); err != nil && !errors.Is(err, errdefs.ErrCanceled) {
		t.Fatal(err)
	}
	if err := behind.Wait(deadline(t)); err != nil && !errors.Is(err, errdefs.ErrCanceled) {
		t.Fatal(err)
	}
	w.sentinelStays(r)
	w.ok(w.submit(whole(r, f)))
	w.check()
}
