package softnic

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

// fullStream is a stream without space: Submit waits until its context ends.
type fullStream struct{ stream.Stream }

func (fullStream) Submit(ctx context.Context, _ *mem.Batch) (*stream.Ticket, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func (fullStream) Close(context.Context) error { return nil }

// within calls f and fails if it does not return.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(testkit.Patience()):
		t.Fatalf("%s does not end", what)
	}
}

// TestDefectMoverWaitsForAStuckStreamWithoutEnd checks that a transfer on a full stream fails after
// a while without starting, and that a stream that is being opened delays Close only until its
// context ends.
func TestDefectMoverWaitsForAStuckStreamWithoutEnd(t *testing.T) {
	m := NewMover(func() (stream.Stream, error) { return fullStream{}, nil })
	m.patience = 10 * time.Millisecond
	within(t, "a copy without room", func() {
		if err := m.copy(&mem.Batch{}); !errors.Is(err, errdefs.ErrBusy) {
			t.Errorf("without room: %v", err)
		}
	})
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := m.copy(&mem.Batch{}); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("copy after Close: %v", err)
	}

	asked, let := make(chan struct{}), make(chan struct{})
	m = NewMover(func() (stream.Stream, error) {
		close(asked)
		<-let
		return nil, errdefs.ErrNotSupported
	})
	moved := make(chan error, 1)
	go func() { moved <- m.move(&mem.Batch{}) }()
	<-asked
	within(t, "Close", func() {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := m.Close(ctx); !errors.Is(err, errdefs.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("close while a stream is being opened: %v", err)
		}
	})
	close(let)
	if err := <-moved; !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("the transfer ended: %v", err)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Errorf("close again: %v", err)
	}
}

// TestMoverClosesWhatBrokeUnseen uses a device that does not report the end of a copy. The copy
// must end when its stream is closed, and the next copy must use another stream.
func TestMoverClosesWhatBrokeUnseen(t *testing.T) {
	plan := fault.New(1)
	dev, err := sim.Open(sim.Options{Faults: plan})
	if err != nil {
		t.Fatal(err)
	}
	opened := 0
	m := NewMover(func() (stream.Stream, error) {
		opened++
		return streamcopy.Open(dev, streamcopy.Options{Path: stream.PathCopyEngine})
	})
	host, herr := dev.AllocHost(4096)
	gpu, gerr := dev.Alloc(4096, device.AllocOptions{})
	if err := errors.Join(herr, gerr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(m.Close(context.Background()), dev.Free(host), dev.Free(gpu), dev.Close()); err != nil {
			t.Error(err)
		}
	})
	b := &mem.Batch{Dst: []mem.Extent{mem.All(gpu)}, Src: []mem.Extent{mem.All(host)}}
	n := int(plan.Seen(sim.OpRecord)) // the stream tries twice
	for i := range 2 {
		plan.Add(fault.Nth(sim.OpRecord, n+i).Fail(nil))
	}
	within(t, "a copy without an event", func() {
		if err := m.copy(b); !errors.Is(err, fault.ErrInjected) {
			t.Errorf("a copy without an event: %v", err)
		}
	})
	within(t, "the next copy", func() {
		if err := m.copy(b); err != nil {
			t.Error(err)
		}
	})
	if opened != 2 {
		t.Errorf("%d streams were opened", opened)
	}
}
