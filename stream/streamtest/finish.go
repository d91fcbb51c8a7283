package streamtest

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
)

// stallNext makes the next work of the device stall.
func (e *Env) stallNext() { e.Plan.Add(fault.Nth(e.Work, int(e.Plan.Seen(e.Work))).Stall()) }

func (e *Env) failNext(cause error) {
	e.Plan.Add(fault.Nth(e.Work, int(e.Plan.Seen(e.Work))).Fail(cause))
}

func testClose(t *testing.T, env Env) {
	w := newWorld(t, env, 0, 70)
	r, f := w.region(env.B, 1<<16), w.region(env.A, 1<<16)
	s := w.open(0)
	w.s = s
	ticket := w.submit(whole(r, f))
	w.ok(ticket)
	for range 3 {
		if err := s.Close(deadline(t)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Submit(t.Context(), whole(r, f)); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("submit on a closed stream: %v", err)
	}
	ticket.Cancel()
	w.check()
}

func testCloseWaiting(t *testing.T, env Env) {
	w := newWorld(t, env, 2, 71)
	r, f := w.region(env.B, 100), w.region(env.A, 100)
	g := newGate()
	first := w.submitOnly(whole(r, f, g))
	second := w.submitOnly(whole(r, f, env.ifUnordered(g)...))
	blocked := make(chan error, 1)
	go func() {
		_, err := w.s.Submit(deadline(t), whole(r, f))
		blocked <- err
	}()
	time.Sleep(pause)
	if err := w.s.Close(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if !resolved(first) || !resolved(second) {
		t.Error("close left tickets unresolved")
	}
	w.fails(first, errdefs.ErrCanceled)
	w.fails(second, errdefs.ErrCanceled)
	if err := <-blocked; !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("a submit that was waiting when the stream closed: %v", err)
	}
	w.check()
}

func testCloseGivesUp(t *testing.T, env Env) {
	w := newWorld(t, env, 0, 72)
	r, f, other := w.region(env.B, 1000), w.region(env.A, 1000), w.region(env.B, 10)
	env.stallNext()
	stalled := w.submit(whole(r, f))
	waiting := w.submitOnly(whole(f, other, newGate()))
	if err := env.Plan.Await(deadline(t), 1); err != nil {
		t.Fatal(err)
	}
	cause := errors.New("close takes too long")
	ctx, cancel := context.WithTimeoutCause(t.Context(), pause, cause)
	defer cancel()
	if err := w.s.Close(ctx); !errors.Is(err, cause) {
		t.Fatalf("close of a stalled stream: %v", err)
	}
	if resolved(stalled) {
		t.Error("the ticket resolved while the device was at work")
	}
	if _, err := w.s.Submit(t.Context(), whole(r, f)); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("submit on a closing stream: %v", err)
	}
	env.Plan.Release()
	if err := w.s.Close(deadline(t)); err != nil {
		t.Fatal(err)
	}
	w.ok(stalled)
	w.fails(waiting, errdefs.ErrCanceled)
	w.check()
}

// testSticky breaks the device during the second of three batches.
func testSticky(t *testing.T, env Env) {
	w := newWorld(t, env, 0, 73)
	r, f := w.region(env.B, 1<<16), w.region(env.A, 1<<16)
	w.ok(w.submit(whole(r, f)))
	native := errors.New("the bus fell off")
	g := newGate()
	b := w.scatter(r, f, 5, func(int) int64 { return 64 })
	b.After = []mem.Dependency{g}
	failing := w.submitOnly(b)
	behind := w.submitOnly(whole(f, w.region(env.A, 10)))
	env.failNext(native)
	g.open(nil)
	w.fails(failing, native, fault.ErrInjected)
	if errors.Is(failing.Err(), errdefs.ErrBroken) {
		t.Errorf("the first failure is not of an earlier one: %v", failing.Err())
	}
	if path := failing.Completion().Path; !strings.Contains(failing.Err().Error(), path.String()) {
		t.Errorf("error %q does not name the path %s", failing.Err(), path)
	}
	w.fails(behind, errdefs.ErrBroken, native)
	if _, err := w.s.Submit(t.Context(), &mem.Batch{}); !errors.Is(err, errdefs.ErrBroken) || !errors.Is(err, native) {
		t.Errorf("submit on a broken stream: %v", err)
	}
	if err := w.s.Close(deadline(t)); err != nil {
		t.Errorf("close of a broken stream: %v", err)
	}
	if _, err := w.s.Submit(t.Context(), &mem.Batch{}); !errors.Is(err, errdefs.ErrBroken) && !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("submit on a broken and closed stream: %v", err)
	}
	// The destinations of failed batches are undefined until the test writes them again. A new
	// stream works.
	w.s = w.open(0)
	w.fill(f, w.want[f])
	w.fill(r, bytes.Repeat([]byte{0xa5}, int(r.Len())))
	w.ok(w.submit(whole(r, f)))
	w.check()
}
