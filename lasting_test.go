//go:build !nonic

package kvlane

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

// TestLastingStreamClosesWhatBrokeUnseen: the device takes a copy and does not say when it is done. The ticket resolves once
// that stream is closed, which nobody has to submit anything for, and the next batch goes by another stream.
func TestLastingStreamClosesWhatBrokeUnseen(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	plan := fault.New(1)
	dev, err := sim.Open(sim.Options{Faults: plan})
	if err != nil {
		t.Fatal(err)
	}
	opened := 0
	l := newLasting(func() (stream.Stream, error) {
		opened++
		return streamcopy.Open(dev, streamcopy.Options{Path: stream.PathCopyEngine})
	})
	host, herr := dev.AllocHost(4096)
	gpu, gerr := dev.Alloc(4096, device.AllocOptions{})
	if err := errors.Join(herr, gerr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(l.Close(context.Background()), dev.Free(host), dev.Free(gpu), dev.Close()); err != nil {
			t.Error(err)
		}
	})
	b := &mem.Batch{Dst: []mem.Extent{mem.All(gpu)}, Src: []mem.Extent{mem.All(host)}}
	n := int(plan.Seen(sim.OpRecord)) // the stream tries twice
	for i := range 2 {
		plan.Add(fault.Nth(sim.OpRecord, n+i).Fail(nil))
	}
	lost, err := l.Submit(ctx, b)
	if err != nil {
		t.Fatal(err)
	}
	if err := lost.Wait(ctx); !errors.Is(err, fault.ErrInjected) {
		t.Fatalf("ticket of a copy without an event: %v", err)
	}
	again, err := l.Submit(ctx, b)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Wait(ctx); err != nil {
		t.Error(err)
	}
	if opened != 2 {
		t.Errorf("%d streams were opened", opened)
	}
	if err := l.Close(ctx); err != nil {
		t.Error(err)
	}
	if _, err := l.Submit(ctx, b); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("submit after Close: %v", err)
	}
}

// TestDefectLastingStreamIsWaitedForWithAContext: the driver takes its time to open a stream. Who submits or closes meanwhile waits
// no longer than his context says.
func TestDefectLastingStreamIsWaitedForWithAContext(t *testing.T) {
	dev, err := sim.Open(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	asked, let := make(chan struct{}), make(chan struct{})
	l := newLasting(func() (stream.Stream, error) {
		close(asked)
		<-let
		return streamcopy.Open(dev, streamcopy.Options{})
	})
	submit := func(ctx context.Context) error {
		_, err := l.Submit(ctx, &mem.Batch{})
		return err
	}
	first := make(chan error, 1)
	go func() { first <- submit(t.Context()) }()
	<-asked
	for name, call := range map[string]func(context.Context) error{"submit": submit, "close": l.Close} {
		said := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			said <- call(ctx)
		}()
		select {
		case err := <-said:
			if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, errdefs.ErrClosed) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("%s did not end with its context", name)
		}
	}
	close(let)
	if err := <-first; err != nil && !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("the submit that opened the stream: %v", err)
	}
	if err := errors.Join(l.Close(t.Context()), dev.Close()); err != nil {
		t.Error(err)
	}
}
