package soft

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// stuckStream takes so many batches and completes none before it is told.
type stuckStream struct {
	stream.Stream
	room    chan struct{}
	tickets chan *stream.Ticket
}

func newStuckStream(room int) *stuckStream {
	return &stuckStream{room: make(chan struct{}, room), tickets: make(chan *stream.Ticket, room)}
}

func (s *stuckStream) Submit(ctx context.Context, _ *mem.Batch) (*stream.Ticket, error) {
	select {
	case s.room <- struct{}{}:
		t := stream.NewTicket(1, nil)
		s.tickets <- t
		return t, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (s *stuckStream) resolve() {
	for len(s.tickets) > 0 {
		(<-s.tickets).Resolve(stream.Completion{}, nil)
	}
}

// within calls f and fails if it does not return.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Fatalf("%s does not end", what)
	}
}

// TestDefectMoverWaitsForAStuckStreamWithoutEnd: a stream that takes no more, be it that its places are taken or the mover's own,
// fails the next transfer after a while, which has not begun.
func TestDefectMoverWaitsForAStuckStreamWithoutEnd(t *testing.T) {
	for name, room := range map[string]int{"of the stream": 2, "of the mover": 2 * maxOwed} {
		t.Run(name, func(t *testing.T) {
			s := newStuckStream(room)
			m := NewStreamMover(s)
			m.lanes[0].patience = 10 * time.Millisecond
			e := &engine{wake: make(chan struct{}, 1)}
			var all []*Transfer
			for range min(room, maxOwed) {
				all = append(all, &Transfer{engine: e, pieces: 1})
				within(t, "Move with room", func() { m.Move(all[len(all)-1]) })
			}
			late := &Transfer{engine: e, pieces: 1}
			within(t, "Move without room", func() { m.Move(late) })
			if !late.landed.Load() || !errors.Is(late.err, errdefs.ErrBusy) {
				t.Errorf("the transfer without room has ended: %t, %v", late.landed.Load(), late.err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			within(t, "Close", func() {
				if err := m.Close(ctx); !errors.Is(err, errdefs.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("close while the stream is at it: %v", err)
				}
			})
			s.resolve()
			if err := m.Close(t.Context()); err != nil {
				t.Errorf("close again: %v", err)
			}
			for i, tr := range all {
				if !tr.landed.Load() || tr.err != nil {
					t.Errorf("transfer %d has ended: %t, %v", i, tr.landed.Load(), tr.err)
				}
			}
		})
	}
}
