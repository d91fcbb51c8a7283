package blockiotest

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
)

// hold lets the server hold requests, and returns the function that lets them go on.
func (r *rig) hold(b Behavior) func() {
	c := make(chan struct{})
	b.Hold = c
	r.s.Behave(b)
	return func() { close(c) }
}

// until waits for a condition.
func until(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(testkit.Patience()); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatal(what)
		}
	}
}

func testCancelIsConfirmed(t *testing.T, transport Transport) {
	r := newRig(t, transport, blockio.DefaultLimits(), blockio.ClientOptions{})
	r.stored(t, 2)
	release := r.hold(Behavior{})
	defer release()
	all, _ := r.pieces(t, 2, 0)
	errs := make([]error, len(all))
	cause := errors.New("the request was abandoned")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		until(t, "the server got no retrieve", func() bool { return r.s.Requests(blockio.OpRetrieve) > 0 })
		cancel(cause)
	}()
	r.Retrieve(ctx, all, errs)
	if r.s.Requests(blockio.OpCancel) == 0 {
		t.Error("the server got no cancellation")
	}
	for _, err := range errs {
		wantErr(t, "a cancelled retrieve", err, errdefs.ErrCanceled)
	}
	if s := r.Stats(); s.Fences == 0 {
		t.Errorf("statistics %+v", s)
	}
}

// The server does not confirm the cancellation, and writes when the memory is in use again.
func testLateWritesChangeNothing(t *testing.T, transport Transport) {
	r := newRig(t, transport, blockio.DefaultLimits(), blockio.ClientOptions{Retries: -1})
	want := r.stored(t, 2)
	release := r.hold(Behavior{IgnoreCancel: true})
	all, m := r.pieces(t, 2, 0)
	errs := make([]error, len(all))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	r.Retrieve(ctx, all, errs)
	for _, err := range errs {
		wantErr(t, "a retrieve that timed out", err, errdefs.ErrCanceled)
	}
	reused := m.Bytes()
	for i := range reused {
		reused[i] = 0xee
	}
	release()
	r.s.Behave(Behavior{})
	other, n := r.pieces(t, 2, 0)
	again := make([]error, len(other))
	r.Retrieve(t.Context(), other, again)
	must(t, errors.Join(again...))
	if !bytes.Equal(n.Bytes(), want) {
		t.Error("the bytes after a new connection differ")
	}
	for i, b := range reused {
		if b != 0xee {
			t.Fatalf("byte %d of reused memory was changed to %#x", i, b)
		}
	}
	if s := r.Stats(); s.FenceTimeouts == 0 || s.Connections != 2 {
		t.Errorf("statistics %+v", s)
	}
}

// A call without a credit is not sent. Its end needs no fence at the server.
func testQueuedCallsEnd(t *testing.T, transport Transport) {
	l := small()
	l.Credits = 1
	r := newRig(t, transport, l, blockio.ClientOptions{})
	r.stored(t, 1)
	release := r.hold(Behavior{})
	defer release()
	all, _ := r.pieces(t, 16, 0) // many calls, each of which could use the credit of an ended one
	errs := make([]error, len(all))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		until(t, "the server got no retrieve", func() bool { return r.s.Requests(blockio.OpRetrieve) > 0 })
		cancel()
	}()
	r.Retrieve(ctx, all, errs)
	for _, err := range errs {
		wantErr(t, "a cancelled retrieve", err, errdefs.ErrCanceled)
	}
	if n := r.s.Requests(blockio.OpRetrieve); n != 1 {
		t.Errorf("the server got %d retrieves with one credit", n)
	}
}
