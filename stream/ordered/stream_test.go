package ordered_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
)

var errHardware = errors.New("it went wrong")

// TestAdmission checks that a full stream blocks Submit until its context ends, and that a refused
// batch leaves nothing behind.
func TestAdmission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(2)
		wantIs(t, r.try(t.Context(), &batch{parts: 1}, nil), errdefs.ErrInvalid)
		a, b := r.submit(t, 1), r.submit(t, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begun := time.Now()
		wantIs(t, r.try(ctx, &batch{parts: 1}), context.DeadlineExceeded)
		if waited := time.Since(begun); waited != time.Minute {
			t.Errorf("waited %v for a place", waited)
		}
		admitted := make(chan error)
		c := &batch{parts: 1}
		go func() { admitted <- r.try(t.Context(), c) }()
		synctest.Wait()
		a.land(1)
		if err := <-admitted; err != nil || c.ID() != 3 {
			t.Errorf("batch %d: %v", c.ID(), err)
		}
		b.land(1)
		c.land(1)
		wantDone(t, "ooo", a, b, c)
		if got := []uint64{1, 2, 3}; !slices.Equal(r.issued, got) {
			t.Errorf("issued batches %v", r.issued)
		}
		r.close(t)
		wantIs(t, r.try(t.Context(), &batch{parts: 1}), errdefs.ErrClosed)
	})
}

// TestOrder checks that batches are issued in order, part by part as space permits, and resolve in
// order, in whatever order parts complete.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(8)
		r.room = 3
		a, b, c := r.submit(t, 2), r.submit(t, 2), r.submit(t, 1)
		if want := []uint64{1, 1, 2}; !slices.Equal(r.issued, want) {
			t.Errorf("issued batches %v, want %v", r.issued, want)
		}
		r.set(func() { r.room = 3 })
		if want := []uint64{1, 1, 2, 2, 3}; !slices.Equal(r.issued, want) {
			t.Errorf("issued batches %v, want %v", r.issued, want)
		}
		c.land(1)
		b.land(2)
		a.land(1)
		wantDone(t, "---", a, b, c)
		a.land(1)
		wantDone(t, "ooo", a, b, c)
		r.close(t)
	})
}

// TestDependencies checks that an unresolved dependency delays its batch and all later ones. A
// failed dependency fails only its batch.
func TestDependencies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(8)
		first, second := stream.NewTicket(1, nil), stream.NewTicket(2, nil)
		a, b, c := r.submit(t, 1, first), r.submit(t, 1, second), r.submit(t, 1)
		if len(r.issued) > 0 {
			t.Errorf("issued batches %v", r.issued)
		}
		first.Resolve(stream.Completion{}, nil)
		synctest.Wait()
		if want := []uint64{1}; !slices.Equal(r.issued, want) {
			t.Errorf("issued batches %v, want %v", r.issued, want)
		}
		second.Resolve(stream.Completion{}, errHardware)
		synctest.Wait()
		a.land(1)
		c.land(1)
		wantDone(t, "oxo", a, b, c)
		wantIs(t, b.ticket.Err(), errHardware)
		wantNot(t, b.ticket.Err(), errdefs.ErrBroken)
		r.close(t)
	})
}

// TestBreak checks a failure: earlier batches succeed, later ones fail with the cause whether or
// not they were issued, and no more are admitted. Of two failures the one that is first in the
// stream's order is the cause.
func TestBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(8)
		other := errors.New("something else")
		all := []*batch{r.submit(t, 1), r.submit(t, 1), r.submit(t, 1), r.submit(t, 1)}
		r.set(func() { r.room = 0 })
		all = append(all, r.submit(t, 1))
		all[2].Fail(other, false)
		all[1].Fail(errHardware, false)
		all[1].Fail(other, false)
		for _, b := range all[:4] {
			b.land(1)
		}
		wantDone(t, "oxxxx", all...)
		if err := all[1].ticket.Err(); !errors.Is(err, errHardware) || errors.Is(err, errdefs.ErrBroken) {
			t.Error(err)
		}
		wantIs(t, all[2].ticket.Err(), errdefs.ErrBroken, errHardware, other)
		wantIs(t, all[3].ticket.Err(), errdefs.ErrBroken, errHardware)
		wantIs(t, all[4].ticket.Err(), errdefs.ErrBroken)
		wantIs(t, r.try(t.Context(), &batch{parts: 1}), errdefs.ErrBroken, errHardware)
		wantIs(t, r.s.Err(), errHardware)
		if slices.Contains(r.issued, 5) {
			t.Error("a broken stream issued another batch")
		}
		r.close(t)
	})
}

// TestConsequence checks a failure that is the consequence of another. It breaks the stream if no
// failure has before. It never replaces another cause, and its own cause replaces it.
func TestConsequence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(8)
		flushed := errors.New("flushed")
		a, b := r.submit(t, 1), r.submit(t, 1)
		b.Fail(flushed, true)
		wantIs(t, r.s.Err(), flushed)
		b.Fail(errHardware, false)
		a.Fail(flushed, true)
		a.land(1)
		b.land(1)
		wantIs(t, a.ticket.Err(), flushed)
		wantIs(t, b.ticket.Err(), errHardware)
		wantNot(t, b.ticket.Err(), flushed)
		r.close(t)
	})
}

// TestBreakOfNoBatch checks a failure that belongs to no batch. The oldest unresolved batch fails
// with it. If there is none, Close returns it once.
func TestBreakOfNoBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(8)
		a := r.submit(t, 1)
		a.land(1)
		b, c := r.submit(t, 1), r.submit(t, 1)
		r.s.Break(errHardware)
		b.land(1)
		c.land(1)
		wantDone(t, "oox", a, b, c) // the oldest may have been copied
		wantIs(t, c.ticket.Err(), errdefs.ErrBroken, errHardware)
		r.close(t)

		r = newRig(8)
		r.s.Break(errHardware)
		r.s.Break(errStillRuns)
		wantIs(t, r.s.Close(t.Context()), errHardware, errStillRuns)
		r.close(t)
	})
}

// TestCancel checks that no more parts of a canceled batch are issued, that it resolves only after
// its issued parts have completed, and that other batches are not affected.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(8)
		r.room = 2
		a, b, c := r.submit(t, 3), r.submit(t, 1), r.submit(t, 1)
		a.ticket.Cancel()
		b.ticket.Cancel()
		r.set(func() { r.room = 9 })
		if want := []uint64{1, 1, 3}; !slices.Equal(r.issued, want) {
			t.Errorf("issued batches %v, want %v", r.issued, want)
		}
		c.land(1)
		a.land(1)
		wantDone(t, "---", a, b, c)
		a.land(1)
		wantDone(t, "xxo", a, b, c)
		wantIs(t, a.ticket.Err(), errdefs.ErrCanceled)
		wantIs(t, b.ticket.Err(), errdefs.ErrCanceled)
		r.close(t)
	})
}

// TestClose checks that Close cancels batches that have not started and waits for the others. Until
// then it returns ErrBusy at each call. Resources that could not be freed are freed by a later
// call.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(8)
		r.room = 1
		a, b := r.submit(t, 2), r.submit(t, 1)
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			wantIs(t, r.s.Close(ctx), errdefs.ErrBusy, context.DeadlineExceeded)
			cancel()
		}
		wantIs(t, r.try(t.Context(), &batch{parts: 1}), errdefs.ErrClosed)
		r.set(func() { r.room = 9 })
		r.set(func() { a.landed(a.inFlight); r.free = errHardware })
		wantIs(t, r.s.Close(t.Context()), errHardware)
		wantDone(t, "ox", a, b)
		wantIs(t, b.ticket.Err(), errdefs.ErrCanceled, errdefs.ErrClosed)
		r.free = nil
		r.close(t)
		r.close(t)
	})
}

// TestQuarantine checks a batch whose completion cannot be detected. It and all later batches stay
// unresolved until the hardware has stopped.
func TestQuarantine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(8)
		a, b, c := r.submit(t, 1), r.submit(t, 1), r.submit(t, 1)
		b.Lose()
		b.Fail(errHardware, false)
		for _, b := range []*batch{c, b, a} {
			b.land(1)
		}
		wantDone(t, "o--", a, b, c)
		if n := r.s.Quarantined(); n != 2 {
			t.Errorf("%d are in quarantine", n)
		}
		r.runs = true
		wantIs(t, r.s.Close(t.Context()), errdefs.ErrBusy, errStillRuns)
		if wantDone(t, "o--", a, b, c); r.freed > 0 {
			t.Error("memory was given back while the hardware runs")
		}
		r.runs = false
		r.close(t)
		wantDone(t, "oxx", a, b, c)
		if n := r.s.Quarantined(); n != 0 {
			t.Errorf("%d are in quarantine", n)
		}
	})
}

// TestCall checks that a call runs after all earlier batches and before all later ones, and
// occupies one place of the queue.
func TestCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(8)
		r.room = 1
		a := r.submit(t, 2)
		var calls, undone int
		said := make(chan error)
		call := func(ctx context.Context) {
			said <- r.s.Call(ctx, func() (bool, error) { calls++; return true, nil }, func() { undone++ })
		}
		go call(t.Context())
		synctest.Wait()
		b := r.submit(t, 1)
		if calls > 0 {
			t.Error("called before its turn")
		}
		ended, cancel := context.WithCancel(t.Context())
		go call(ended)
		synctest.Wait()
		cancel()
		wantIs(t, <-said, context.Canceled)
		r.set(func() { r.room = 1 })
		if err := <-said; err != nil || calls != 1 || undone != 0 {
			t.Errorf("%v, %d calls, %d undone", err, calls, undone)
		}
		r.set(func() { r.room = 1 })
		a.land(2)
		b.land(1)
		wantDone(t, "oo", a, b)
		if calls != 1 {
			t.Error("called after it was given up")
		}
		r.s.Break(errHardware)
		go call(t.Context())
		wantIs(t, <-said, errdefs.ErrBroken, errHardware)
		r.close(t)
	})
}

// TestCallIsUndone checks that the effect of a call is undone if its caller's context ends
// meanwhile.
func TestCallIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(8)
		r.room = 0
		a := r.submit(t, 1)
		ctx, cancel := context.WithCancel(t.Context())
		undone, said := 0, make(chan error)
		go func() {
			said <- r.s.Call(ctx, func() (bool, error) {
				cancel()
				time.Sleep(time.Minute)
				return true, nil
			}, func() { undone++ })
		}()
		synctest.Wait()
		r.set(func() { r.room = 1 })
		wantIs(t, <-said, context.Canceled)
		time.Sleep(time.Hour)
		synctest.Wait()
		if undone != 1 {
			t.Errorf("the call was undone %d times, want 1", undone)
		}
		a.land(1)
		r.close(t)
	})
}

// TestConcurrent submits, cancels and completes batches concurrently. Every ticket must resolve,
// after all earlier ones.
func TestConcurrent(t *testing.T) {
	r := newRig(16)
	var mu sync.Mutex
	var all []*batch
	quit := make(chan struct{})
	var landers, submitters sync.WaitGroup
	for range 2 {
		landers.Go(func() {
			for {
				select {
				case <-quit:
					return
				default:
				}
				mu.Lock()
				r.mu.Lock()
				for _, i := range rand.Perm(len(all)) {
					all[i].landed(all[i].inFlight)
				}
				r.room = 4
				r.mu.Unlock()
				mu.Unlock()
				r.s.ResolveCompleted()
			}
		})
	}
	for range 4 {
		submitters.Go(func() {
			for i := range 200 {
				b := &batch{parts: 1 + i%3}
				b.rig = r
				mu.Lock()
				all = append(all, b)
				mu.Unlock()
				if err := r.try(t.Context(), b); err != nil {
					t.Error(err)
					return
				}
				if i%7 == 0 {
					b.ticket.Cancel()
				}
			}
		})
	}
	submitters.Wait()
	mu.Lock()
	slices.SortFunc(all, func(a, b *batch) int { return int(a.ID()) - int(b.ID()) })
	mu.Unlock()
	for i := len(all) - 1; i >= 0; i-- {
		if err := all[i].ticket.Wait(t.Context()); err != nil && !errors.Is(err, errdefs.ErrCanceled) {
			t.Error(err)
		}
		for _, before := range all[:i] {
			if !before.ticket.Poll() {
				t.Fatalf("batch %d has resolved, and batch %d has not", i+1, before.ID())
			}
		}
	}
	close(quit)
	landers.Wait()
	r.close(t)
}
