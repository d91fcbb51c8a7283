// Package softnic lets software NICs copy with streams, so that they can access device memory.
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

// Mover is a soft.Mover that copies with a stream, one transfer after another. It can access the
// memory that the stream's device can access: device memory and pinned host memory. If the stream
// breaks, it opens another one, so that new queue pairs work again. A transfer fails with ErrBusy
// if the stream has no space for it for half a minute.
type Mover struct {
	open     func() (stream.Stream, error)
	patience time.Duration // time for which a transfer waits for space in the stream

	lock   chan struct{} // has one element during a copy or Close; can be awaited with a context
	s      stream.Stream // nil if not open; guarded by lock
	closed bool          // guarded by lock
}

var _ soft.Mover = (*Mover)(nil)

const (
	// maxPatience is the time after which a stream that accepts no batches counts as broken.
	maxPatience = 30 * time.Second
	// probeEvery is the interval of checks whether a stream with an incomplete copy is broken.
	probeEvery = 250 * time.Millisecond
)

// NewMover returns a mover on an ordered stream. It calls open for the first transfer, and again
// after the stream has broken.
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

// Open opens the stream now. Later, opening might have to wait for streams of the host program,
// because it allocates memory.
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

// Move copies the transfer's bytes. It returns after the last access to the memory.
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
	ctx, cancel := context.WithTimeoutCause(context.Background(), m.patience, fmt.Errorf("there was no space for %v: %w", m.patience, errdefs.ErrBusy))
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

// await waits until the ticket resolves, without a time limit, because the memory may be accessed
// until then. If the device cannot confirm that a copy has stopped, its ticket resolves when the
// broken stream is closed, which probe does.
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

// probe submits an empty batch and closes the stream if it is broken.
func (m *Mover) probe() {
	ctx, cancel := context.WithTimeout(context.Background(), probeEvery)
	defer cancel()
	if m.s == nil {
		return
	}
	if _, err := m.s.Submit(ctx, &mem.Batch{}); errors.Is(err, errdefs.ErrBroken) {
		_ = m.retire(ctx) // the next tick retries
	}
}

// retire closes the stream. The first Close may return the stream's failure although it has closed
// the stream, so a second call decides.
func (m *Mover) retire(ctx context.Context) error {
	if err := m.s.Close(ctx); err != nil && m.s.Close(ctx) != nil {
		return err
	}
	m.s = nil
	return nil
}

// Close closes the mover. Call it after all providers that use the mover are closed. If ctx ends
// during a transfer, it returns ErrBusy with the cause of ctx and may be called again. After
// success it returns nil at once.
func (m *Mover) Close(ctx context.Context) error {
	select {
	case m.lock <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("close mover: a transfer is not complete: %w: %w", errdefs.ErrBusy, context.Cause(ctx))
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
