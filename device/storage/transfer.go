package storage

import (
	"context"
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// transfer is a read or write on a queue. It stays in live of its file until it is finished, which
// keeps its words valid even if the owner has closed it.
type transfer struct {
	f   *file
	drv Enqueuer
	dir Direction
	mem mem.Extent
	off int64
	w   Words
	// event follows the transfer. It is nil if no event could be recorded; lost then is the reason,
	// and the transfer never finishes.
	event device.Event
	lost  error

	mu    sync.Mutex
	gone  bool // Close was called
	refs  int  // one for the owner, until Close, and one for each call that uses the event
	over  bool
	moved int64
	err   error // valid after over is set
}

// EnqueueRead implements device.StorageEnqueuer.
func (f *enqueuer) EnqueueRead(q device.Queue, dst mem.Extent, off int64) (device.Transfer, error) {
	return f.enqueue(Read, q, dst, off)
}

// EnqueueWrite implements device.StorageEnqueuer.
func (f *enqueuer) EnqueueWrite(q device.Queue, src mem.Extent, off int64) (device.Transfer, error) {
	return f.enqueue(Write, q, src, off)
}

func (f *enqueuer) enqueue(d Direction, q device.Queue, e mem.Extent, off int64) (device.Transfer, error) {
	t, err := f.start(d, q, e, off)
	if err != nil {
		return nil, fmt.Errorf("enqueue %s of file, %d bytes at %d: %w", d, e.Len, off, err)
	}
	return t, nil
}

func (f *enqueuer) start(d Direction, q device.Queue, e mem.Extent, off int64) (*transfer, error) {
	drv, ok := f.drv.(Enqueuer)
	if !ok {
		return nil, fmt.Errorf("the library has no asynchronous transfers: %w", errdefs.ErrNotSupported)
	}
	if err := f.begin(e, off); err != nil {
		return nil, err
	}
	defer f.end()
	f.reapLeft()
	w, err := f.s.words.get()
	if err != nil {
		return nil, fmt.Errorf("make words for a transfer: %w", err)
	}
	w.Store(WordSize, e.Len)
	w.Store(WordFileOffset, off)
	w.Store(WordBufferOffset, 0)
	w.Store(WordMoved, Unset)
	t := &transfer{f: f.file, drv: drv, dir: d, mem: e, off: off, w: w, refs: 1}
	if e.Len == 0 {
		w.Store(WordMoved, 0) // libraries treat empty transfers differently
	} else {
		err = drv.Enqueue(q, d, e, w)
	}
	event, lost := q.Record()
	if lost != nil {
		t.lost = fmt.Errorf("the end of the transfer is unknown, because no event was recorded after it: %w: %w", errdefs.ErrBroken, lost)
	} else {
		t.event = event
	}
	f.mu.Lock()
	f.live[t] = struct{}{}
	f.mu.Unlock()
	if err != nil {
		// The transfer may have been enqueued; its words stay until the queue has passed it.
		t.Close()
		return nil, err
	}
	return t, nil
}

// reapLeft releases the words of finished transfers whose owners closed them before.
func (f *file) reapLeft() {
	f.mu.Lock()
	left := f.left
	f.left = nil
	f.mu.Unlock()
	for _, t := range left {
		if t.retain() {
			_, _, _ = t.Done() // the result is not needed
			t.drop()
		}
	}
}

// retain keeps the event until drop. It returns false if the transfer is already finished.
func (t *transfer) retain() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return false
	}
	t.refs++
	return true
}

// drop ends a retain, or the owner's use. The last drop closes the event of a finished transfer,
// and adds an unfinished transfer to the file's left.
func (t *transfer) drop() {
	t.mu.Lock()
	t.refs--
	last, over := t.refs == 0, t.over
	t.mu.Unlock()
	switch {
	case last && over:
		t.event.Close()
	case last && t.event != nil:
		t.f.mu.Lock()
		t.f.left = append(t.f.left, t)
		t.f.mu.Unlock()
	}
}

func (t *transfer) isOver() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.over
}

// Done implements device.Transfer.
func (t *transfer) Done() (moved int64, done bool, err error) {
	if !t.retain() {
		return t.verdict()
	}
	defer t.drop()
	if t.event == nil {
		return 0, false, t.lost
	}
	done, err = t.event.Done()
	if !done {
		return 0, false, err
	}
	t.finish(err)
	return t.verdict()
}

// Wait implements device.Transfer.
func (t *transfer) Wait(ctx context.Context) (moved int64, err error) {
	if t.retain() {
		defer t.drop()
		if t.event == nil {
			return 0, t.lost
		}
		if err := t.event.Wait(ctx); err != nil {
			// The context has ended, or the queue is broken. The event still reports whether the
			// transfer is done.
			done, failed := t.event.Done()
			if !done {
				return 0, err
			}
			t.finish(failed)
		} else {
			t.finish(nil)
		}
	}
	moved, _, err = t.verdict()
	return moved, err
}

// verdict returns the result of a finished transfer.
func (t *transfer) verdict() (moved int64, done bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.moved, true, t.err
}

// finish ends a transfer whose event is done, and releases its words. failed is the queue's error.
func (t *transfer) finish(failed error) {
	t.mu.Lock()
	if t.over {
		t.mu.Unlock()
		return
	}
	t.moved, t.err = t.outcome(failed)
	t.over = true
	t.mu.Unlock()
	f := t.f
	f.s.words.put(t.w)
	f.mu.Lock()
	delete(f.live, t)
	close(f.changed)
	f.changed = make(chan struct{})
	f.mu.Unlock()
}

func (t *transfer) outcome(failed error) (n int64, err error) {
	switch {
	case failed != nil:
		err = failed
	case t.w.Load(WordMoved) == Unset:
		err = fmt.Errorf("the queue passed the transfer, but the library did not write its result: %w", errdefs.ErrBroken)
	case t.mem.Len > 0:
		n, err = t.drv.Outcome(t.dir, t.mem, t.w)
		n, err = checked(n, t.mem.Len, err)
	}
	if err != nil {
		return n, fmt.Errorf("%s file, %d bytes at %d: %w", t.dir, t.mem.Len, t.off, err)
	}
	return n, nil
}

// Close implements device.Transfer. It may be called twice.
func (t *transfer) Close() {
	t.mu.Lock()
	closed := t.gone
	t.gone = true
	t.mu.Unlock()
	if !closed {
		t.drop()
	}
}
