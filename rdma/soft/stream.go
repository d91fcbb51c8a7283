package soft

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// StreamMover is a Mover that copies by streams, and so between whatever the streams' device reaches: the memory of a GPU
// and pinned host memory. The transfers of one engine all go by one stream.
type StreamMover struct {
	lanes []*lane
	once  sync.Once
}

var _ Mover = (*StreamMover)(nil)

// lane is a stream with the two goroutines that serve it: long transfers are submitted by the one, so that the engine goes
// on meanwhile, and the other waits for tickets.
type lane struct {
	s      stream.Stream
	queue  chan *Transfer
	queued atomic.Int64 // transfers that are not submitted, or just now
	owed   chan *owed
	ended  chan struct{}
	spare  sync.Pool // of *owed
}

// owed is a transfer that the stream is at.
type owed struct {
	ticket   *stream.Ticket
	transfer *Transfer
}

const (
	// maxQueued and maxOwed are how many transfers may be on their way to a stream, and with it, before Move waits.
	maxQueued = 16
	maxOwed   = 256
	// shortPieces is up to how many pieces a transfer is submitted within Move, where that takes no longer than to wake
	// somebody else.
	shortPieces = 32
)

// NewStreamMover returns a mover on ordered streams, which stay the caller's to close, after the mover. The engines of open
// devices take one in turn: as many streams as devices let them all copy at once.
func NewStreamMover(first stream.Stream, more ...stream.Stream) *StreamMover {
	m := new(StreamMover)
	for _, s := range append([]stream.Stream{first}, more...) {
		l := &lane{s: s, queue: make(chan *Transfer, maxQueued), owed: make(chan *owed, maxOwed), ended: make(chan struct{})}
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

// Move has the transfer submitted as one batch, behind those of the same engine. It waits while the stream is full.
func (m *StreamMover) Move(t *Transfer) {
	l := m.lanes[t.engine.number%len(m.lanes)]
	// Nothing is queued: what this engine gave before has been submitted.
	if t.pieces <= shortPieces && l.queued.Load() == 0 {
		l.submit(t)
		return
	}
	l.queued.Add(1)
	l.queue <- t
}

// submit hands t to the stream. Called for one transfer of an engine at a time, in their order.
func (l *lane) submit(t *Transfer) {
	o, ok := l.spare.Get().(*owed)
	if !ok {
		o = new(owed)
	}
	o.transfer = t
	// A transfer cannot be taken back, so no context ends the wait: a stream that fails ends it.
	var err error
	if o.ticket, err = l.s.Submit(context.Background(), &t.Batch); err != nil {
		t.Done(fmt.Errorf("move %d pieces: %w", t.pieces, err))
		return
	}
	l.owed <- o
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
// the memory any more, and nothing less will do: there is no giving up.
func (l *lane) collect() {
	defer close(l.ended)
	for o := range l.owed {
		err := o.ticket.Wait(context.Background())
		t := o.transfer
		*o = owed{}
		l.spare.Put(o)
		t.Done(err)
	}
}

// Close ends the mover, when all providers that use it are closed. A second Close does nothing.
func (m *StreamMover) Close() {
	m.once.Do(func() {
		for _, l := range m.lanes {
			close(l.queue)
		}
	})
	for _, l := range m.lanes {
		<-l.ended
	}
}
