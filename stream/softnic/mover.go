// Package softnic moves the bytes of NICs in software by streams, so that such NICs reach device memory.
package softnic

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/stream"
)

// Mover is a soft.Mover that copies by a stream, one transfer after the other, and so between whatever the stream's device
// reaches: the memory of a GPU and pinned host memory. Where the stream broke it opens another: queue pairs can be made anew, and
// then what is below has to work again. A transfer that the stream takes nothing of for half a minute fails with ErrBusy.
type Mover struct {
	open     func() (stream.Stream, error)
	patience time.Duration // of a transfer that the stream has no room for

	lock   chan struct{} // a lock that is waited for with a context: one copy, or Close, at a time
	s      stream.Stream // nil: none is open; guarded by lock
	closed bool          // guarded by lock
}

var _ soft.Mover = (*Mover)(nil)

const (
	// maxPatience: a stream that takes nothing for as long does not work.
	maxPatience = 30 * time.Second
	// probeEvery is how often a stream that does not complete a copy is asked whether it broke.
	probeEvery = 250 * time.Millisecond
)

// NewMover returns a mover on an ordered stream that open opens when there is something to move, and again where it broke.
func NewMover(open func() (stream.Stream, error)) *Mover {
	return &Mover{open: open, patience: maxPatience, lock: make(chan struct{}, 1)}
}

// Reaches returns ErrNotSupported for memory that has no device address.
func (m *Mover) Reaches(r *mem.Region) error {
	if r.Dev() == 0 {
		return fmt.Errorf("copy by stream: no device reaches the %s: %w", r, errdefs.ErrNotSupported)
	}
	return nil
}

// Open opens the stream now: opening one allocates, which may have to wait once streams of the host program do.
func (m *Mover) Open() error {
	m.lock <- struct{}{}
	defer func() { <-m.lock }()
	var err error
	if m.s == nil && !m.closed {
		if m.s, err = m.open(); err != nil {
			m.s = nil
			return fmt.Errorf("open mover: %w", err)
		}
	}
	return nil
}

// Move copies the transfer's bytes and returns when nothing touches the memory any more.
func (m *Mover) Move(t *soft.Transfer) { t.Done(m.move(&t.Batch)) }

func (m *Mover) move(b *mem.Batch) error {
	m.lock <- struct{}{}
	err := m.copy(b)
	<-m.lock
	if err != nil {
		return fmt.Errorf("move %d pieces: %w", b.Pieces(), err)
	}
	return nil
}

// copy copies the batch. The caller holds lock.
func (m *Mover) copy(b *mem.Batch) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), m.patience, fmt.Errorf("there was no room for %v: %w", m.patience, errdefs.ErrBusy))
	defer cancel()
	for try := 0; ; try++ {
		if m.closed {
			return fmt.Errorf("the mover is closed: %w", errdefs.ErrClosed)
		}
		var err error
		if m.s == nil {
			if m.s, err = m.open(); err != nil {
				m.s = nil
				return err
			}
		}
		t, err := m.s.Submit(ctx, b)
		if err == nil {
			return m.await(t)
		}
		if !errors.Is(err, errdefs.ErrBroken) || try > 0 {
			return err
		}
		if err := m.retire(ctx); err != nil {
			return err
		}
	}
}

// await returns how the ticket resolved. That it does only when nothing touches the memory any more, and nothing less will do:
// there is no giving up but by those who wait for the transfer. A ticket of which the device cannot say that it has stopped
// resolves when its stream, which is broken, is closed.
func (m *Mover) await(t *stream.Ticket) error {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		select {
		case <-t.Done():
			return t.Err()
		case <-tick.C:
			m.probe()
		}
	}
}

// probe asks the stream by an empty batch whether it still works, and closes it if it does not.
func (m *Mover) probe() {
	ctx, cancel := context.WithTimeout(context.Background(), probeEvery)
	defer cancel()
	if m.s == nil {
		return
	}
	if _, err := m.s.Submit(ctx, &mem.Batch{}); errors.Is(err, errdefs.ErrBroken) {
		_ = m.retire(ctx) // else the next tick tries again
	}
}

// retire closes the stream. The first Close may tell again why it broke, as its tickets have, and have closed it all the same.
func (m *Mover) retire(ctx context.Context) error {
	if err := m.s.Close(ctx); err != nil && m.s.Close(ctx) != nil {
		return err
	}
	m.s = nil
	return nil
}

// Close ends the mover, when all providers that use it are closed. If ctx ends before the stream is through with what it was
// given, it is ErrBusy with the context's cause, and Close may be called again. After success it returns nil at once.
func (m *Mover) Close(ctx context.Context) error {
	select {
	case m.lock <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("close mover: a transfer is not done: %w: %w", errdefs.ErrBusy, context.Cause(ctx))
	}
	defer func() { <-m.lock }()
	m.closed = true
	if m.s == nil {
		return nil
	}
	if err := m.s.Close(ctx); err != nil {
		return fmt.Errorf("close mover: %w", err)
	}
	m.s = nil
	return nil
}
