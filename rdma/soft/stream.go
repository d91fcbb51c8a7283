package soft

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// StreamMover is a Mover that copies by streams, and so between whatever the streams' device reaches: the memory of a GPU
// and pinned host memory. The transfers of one engine all go by one stream. A transfer for which a stream has no room for half a
// minute has not begun, and fails with ErrBusy.
type StreamMover struct {
	lanes []*lane
	once  sync.Once
	quit  context.CancelCauseFunc // ends all waiting for room
}

var _ Mover = (*StreamMover)(nil)

// lane is a stream with the two goroutines that serve it: long transfers are submitted by the one, so that the engine goes
// on meanwhile, and the other waits for tickets.
type lane struct {
	s      stream.Stream
	queue  chan *Transfer
	queued atomic.Int64  // transfers that are not submitted, or just now
	places chan struct{} // one element for each of owed, taken before
	owed   chan *owed
	ended  chan struct{}
	spare  sync.Pool // of *owed
	// ctx ends when Close gives up; patience is how long a transfer waits for room.
	ctx      context.Context
	patience time.Duration
}

// owed is a transfer that the stream is at.
type owed struct {
	ticket   *stream.Ticket
	transfer *Transfer
	room     patience
}

const (
	// maxQueued and maxOwed are how many transfers may be on their way to a stream, and with it, before Move waits.
	maxQueued = 16
	maxOwed   = 256
	// shortPieces is up to how many pieces a transfer is submitted within Move, where that takes no longer than to wake
	// somebody else.
	shortPieces = 32
	// maxPatience is how long a transfer waits for room. A stream that completes nothing for as long does not work.
	maxPatience = 30 * time.Second
)

// NewStreamMover returns a mover on ordered streams, which stay the caller's to close, after the mover. The engines of open
// devices take one in turn: as many streams as devices let them all copy at once.
func NewStreamMover(first stream.Stream, more ...stream.Stream) *StreamMover {
	m := new(StreamMover)
	var ctx context.Context
	ctx, m.quit = context.WithCancelCause(context.Background())
	for _, s := range append([]stream.Stream{first}, more...) {
		l := &lane{
			s: s, queue: make(chan *Transfer, maxQueued), places: make(chan struct{}, maxOwed), owed: make(chan *owed, maxOwed),
			ended: make(chan struct{}), ctx: ctx, patience: maxPatience,
		}
		m.lanes = append(m.lanes, l)
		go l.submitQueued()
		go l.collect()
	}
	return m
}

// Reaches returns ErrNotSupported for memory that has no device address.
func (m *StreamMover) Reaches(r *mem.Region) error {
	if r.Dev() == 0 {
		return fmt.Errorf("copy by stream: no device reaches the %s: %w", r, errdefs.ErrNotSupported)
	}
	return nil
}

// Move has the transfer submitted as one batch, behind those of the same engine. It waits while the stream is full, as long as
// the StreamMover says.
func (m *StreamMover) Move(t *Transfer) {
	l := m.lanes[t.engine.number%len(m.lanes)]
	// Nothing is queued: what this engine gave before has been submitted.
	if t.pieces <= shortPieces && l.queued.Load() == 0 {
		l.submit(t)
		return
	}
	l.queued.Add(1)
	l.queue <- t // what is before it does not wait for ever
}

// submit hands t to the stream. Called for one transfer of an engine at a time, in their order.
func (l *lane) submit(t *Transfer) {
	o, ok := l.spare.Get().(*owed)
	if !ok {
		o = new(owed)
	}
	o.transfer = t
	o.room.Context, o.room.limit = l.ctx, l.patience
	err := l.place(&o.room)
	if err == nil {
		if o.ticket, err = l.s.Submit(&o.room, &t.Batch); err != nil {
			<-l.places
		}
	}
	o.room.end()
	if err != nil {
		t.Done(fmt.Errorf("move %d pieces: %w", t.pieces, err))
		return
	}
	l.owed <- o // there is a place
}

// place takes a place of owed.
func (l *lane) place(ctx context.Context) error {
	select {
	case l.places <- struct{}{}:
		return nil
	default:
	}
	select {
	case l.places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%d transfers are not done: %w", maxOwed, context.Cause(ctx))
	}
}

// submitQueued is a goroutine of the lane until its queue is closed.
func (l *lane) submitQueued() {
	defer close(l.owed)
	for t := range l.queue {
		l.submit(t)
		l.queued.Add(-1)
	}
}

// collect ends the transfers as their tickets resolve, which they do in order. A ticket resolves only when nothing touches
// the memory any more, and nothing less will do: there is no giving up but by whoever waits for this in Close.
func (l *lane) collect() {
	defer close(l.ended)
	for o := range l.owed {
		err := o.ticket.Wait(context.Background())
		t := o.transfer
		*o = owed{}
		l.spare.Put(o)
		<-l.places
		t.Done(err)
	}
}

// Close ends the mover, when all providers that use it are closed. If ctx ends before the streams are through with what they
// were given, it is ErrBusy with the context's cause: what was not submitted fails, and Close may be called again. After
// success it returns nil at once.
func (m *StreamMover) Close(ctx context.Context) error {
	m.once.Do(func() {
		for _, l := range m.lanes {
			close(l.queue)
		}
	})
	for _, l := range m.lanes {
		select {
		case <-l.ended:
			continue
		default:
		}
		select {
		case <-l.ended:
		case <-ctx.Done():
			m.quit(fmt.Errorf("mover was closed before: %w", errdefs.ErrCanceled))
			return fmt.Errorf("close mover: %d transfers are not done: %w: %w", len(l.places), errdefs.ErrBusy, context.Cause(ctx))
		}
	}
	m.quit(errdefs.ErrClosed)
	return nil
}
