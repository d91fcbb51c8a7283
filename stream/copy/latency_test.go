package copy_test

import (
	"context"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// TestUnwatchedTickets checks that tickets resolve without a call of Wait, if the stream learns in
// another way that the result is needed.
func TestUnwatchedTickets(t *testing.T) {
	dev := openSim(t, sim.Options{})
	dst, src := pinned(t, dev, 4096), pinned(t, dev, 4096)
	b := &mem.Batch{Dst: []mem.Extent{mem.All(dst)}, Src: []mem.Extent{mem.All(src)}}
	submit := func(s *streamcopy.Stream, b *mem.Batch) *stream.Ticket {
		t.Helper()
		ticket, err := s.Submit(deadline(t), b)
		if err != nil {
			t.Fatal(err)
		}
		return ticket
	}
	t.Run("done", func(t *testing.T) {
		s := open(t, dev, streamcopy.Options{})
		defer closeStream(t, s)
		for range 100 {
			select {
			case <-submit(s, b).Done():
			case <-time.After(patience):
				t.Fatal("Done is not closed")
			}
		}
	})
	t.Run("dependency", func(t *testing.T) {
		one, two := open(t, dev, streamcopy.Options{}), open(t, dev, streamcopy.Options{})
		defer closeStream(t, one)
		defer closeStream(t, two)
		for range 100 {
			after := *b
			after.After = []mem.Dependency{submit(one, b)}
			if err := submit(two, &after).Wait(deadline(t)); err != nil {
				t.Fatal(err)
			}
		}
	})
	t.Run("full stream", func(t *testing.T) {
		s := open(t, dev, streamcopy.Options{QueueDepth: 1})
		defer closeStream(t, s)
		for range 100 {
			submit(s, b)
		}
	})
	t.Run("close", func(t *testing.T) {
		s := open(t, dev, streamcopy.Options{})
		ticket := submit(s, b)
		closeStream(t, s)
		if err := ticket.Err(); err != nil || ticket.Completion().Bytes != 4096 {
			t.Errorf("after close: %v, %+v", err, ticket.Completion())
		}
	})
}

// TestWaitGivesUpPolling waits for a slow device with a context that ends. Wait returns the cause
// of the context, and a later Wait returns the result.
func TestWaitGivesUpPolling(t *testing.T) {
	plan := fault.New(1, fault.Nth(sim.OpCopy, 0).Stall())
	dev := openSim(t, sim.Options{Faults: plan})
	s := open(t, dev, streamcopy.Options{Path: stream.PathCopyEngine})
	dst, src := pinned(t, dev, 4096), pinned(t, dev, 4096)
	ticket, err := s.Submit(deadline(t), streamtest.Strided(dst, src, 1, 100))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Millisecond, errdefs.ErrBusy)
	defer cancel()
	if err := ticket.Wait(ctx); err != errdefs.ErrBusy { //nolint:errorlint // the cause itself, not wrapped
		t.Errorf("wait: %v", err)
	}
	plan.Release()
	if err := ticket.Wait(deadline(t)); err != nil {
		t.Error(err)
	}
	closeStream(t, s)
}

// TestManyWaiters checks that all goroutines in Wait poll the stream concurrently with the
// completer.
func TestManyWaiters(t *testing.T) {
	dev := openSim(t, sim.Options{})
	s := open(t, dev, streamcopy.Options{})
	dst, src := pinned(t, dev, 1<<16), pinned(t, dev, 1<<16)
	const waiters, rounds = 8, 200
	errs := make(chan error, waiters)
	for w := range waiters {
		go func() {
			for i := range rounds {
				ticket, err := s.Submit(context.Background(), streamtest.Strided(dst, src, 1+(i+w)%5, 100))
				if err == nil && i%3 == 0 {
					<-ticket.Done()
				}
				if err == nil {
					err = ticket.Wait(context.Background())
				}
				if err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range waiters {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	closeStream(t, s)
}

func closeStream(tb testing.TB, s *streamcopy.Stream) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), patience)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		tb.Error(err)
	}
}
