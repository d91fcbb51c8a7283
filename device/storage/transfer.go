package storage

import (
	"context"
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// transfer is a read or write that a queue runs. It is in its file's live until it is over, so that it is there, and its words
// with it, whoever still knows it.
type transfer struct {
	f   *file
	drv Enqueuer
	dir Direction
	mem mem.Extent
	off int64
	w   Words
	// event is behind the transfer; nil where none could be recorded: lost says why, and the transfer is never known to be over.
	event device.Event
	lost  error

	mu    sync.Mutex
	gone  bool // its owner has closed it
	refs  int  // of its owner, until Close, and of calls that use the event
	over  bool
	moved int64
	err   error // with over
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
	w.Store(WordMoved, Unsaid)
	t := &transfer{f: f.file, drv: drv, dir: d, mem: e, off: off, w: w, refs: 1}
	if e.Len == 0 {
		w.Store(WordMoved, 0) // libraries differ in what they say to that
	} else {
		err = drv.Enqueue(q, d, e, w)
	}
	event, lost := q.Record()
	if lost != nil {
		t.lost = fmt.Errorf("nobody can know when it is over, as no event was recorded behind it: %w: %w", errdefs.ErrBroken, lost)
	} else {
		t.event = event
	}
	f.mu.Lock()
	f.live[t] = struct{}{}
	f.mu.Unlock()
	if err != nil {
		t.Close() // the words stay until the queue is past what there may be
		return nil, err
	}
	return t, nil
}

// reapLeft gives back the words of transfers that were closed before they were over and are over now.
func (f *file) reapLeft() {
	f.mu.Lock()
	left := f.left
	f.left = nil
	f.mu.Unlock()
	for _, t := range left {
		if t.hold() {
			_, _, _ = t.Done() // nobody asks any more
			t.drop()
		}
	}
}

// hold keeps the event until drop, unless the transfer is over.
func (t *transfer) hold() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return false
	}
	t.refs++
	return true
}

// drop undoes hold, or ends what the owner has. The last one closes the event of a transfer that is over, and leaves one that
// is not to the file.
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
	if !t.hold() {
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
	t.settle(err)
	return t.verdict()
}

// Wait implements device.Transfer.
func (t *transfer) Wait(ctx context.Context) (moved int64, err error) {
	if t.hold() {
		defer t.drop()
		if t.event == nil {
			return 0, t.lost
		}
		if err := t.event.Wait(ctx); err != nil {
			// The context ended, or the queue is broken: whether the transfer is over the event still says.
			done, failed := t.event.Done()
			if !done {
				return 0, err
			}
			t.settle(failed)
		} else {
			t.settle(nil)
		}
	}
	moved, _, err = t.verdict()
	return moved, err
}

// verdict says how a transfer ended that is over.
func (t *transfer) verdict() (moved int64, done bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.moved, true, t.err
}

// settle ends a transfer whose event is done: failed is the queue's error. It gives back the words.
func (t *transfer) settle(failed error) {
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
	case t.w.Load(WordMoved) == Unsaid:
		err = fmt.Errorf("the queue is past it, and the library has not said what came of it: %w", errdefs.ErrBroken)
	case t.mem.Len > 0:
		n, err = t.drv.Outcome(t.dir, t.mem, t.w)
		n, err = checked(n, t.mem.Len, err)
	}
	if err != nil {
		return n, fmt.Errorf("%s file, %d bytes at %d: %w", t.dir, t.mem.Len, t.off, err)
	}
	return n, nil
}

// Close implements device.Transfer. A second one is harmless.
func (t *transfer) Close() {
	t.mu.Lock()
	again := t.gone
	t.gone = true
	t.mu.Unlock()
	if !again {
		t.drop()
	}
}
