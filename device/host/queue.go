package host

import (
	"context"
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/internal/kernel"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/mem"
)

// Queue runs work in order. It implements device.BatchCopier and device.KernelLister.
type Queue struct {
	dev  *Device
	id   int
	crew crew // owned by the goroutine that runs the work

	mu       sync.Mutex
	ops      []op // not started
	freeOps  []op // reused as the next ops
	running  bool // a goroutine is running the work
	err      error
	reported bool // err was returned to a caller
	closed   bool
}

// op is one unit of work. If event is set, it marks the end of all earlier work.
type op struct {
	name  string
	run   func() error
	event *Event
}

var (
	_ device.BatchCopier  = (*Queue)(nil)
	_ device.KernelLister = (*Queue)(nil)
)

func newQueue(d *Device, id int) *Queue {
	q := &Queue{dev: d, id: id}
	q.crew.muster()
	return q
}

// String names the queue for errors.
func (q *Queue) String() string { return fmt.Sprintf("queue %d of the host device", q.id) }

// Copy enqueues one copy.
func (q *Queue) Copy(dst, src mem.Extent) error {
	return q.CopyBatch([]mem.Extent{dst}, []mem.Extent{src})
}

// CopyBatch enqueues the copies, all or none.
func (q *Queue) CopyBatch(dst, src []mem.Extent) error {
	if len(dst) != len(src) {
		return fmt.Errorf("enqueue copies on %s: %w", q, errInvalid("%d destinations and %d sources", len(dst), len(src)))
	}
	pieces := make([]kernel.Piece, 0, len(dst))
	bytes := uint64(0)
	for i := range dst {
		err := q.dev.check(dst[i])
		if err == nil {
			err = q.dev.check(src[i])
		}
		if err == nil && dst[i].Len != src[i].Len {
			err = errInvalid("%d bytes for %d", src[i].Len, dst[i].Len)
		}
		if err != nil {
			return fmt.Errorf("enqueue copy %d of %d on %s: %w", i, len(dst), q, err)
		}
		pieces = cut(pieces, kernel.Piece{Dst: dst[i].Dev(), Src: src[i].Dev(), N: uint64(dst[i].Len)})
		bytes += uint64(dst[i].Len)
	}
	return q.enqueue(op{name: "copy", run: func() error { return q.crew.copy(pieces, bytes) }})
}

// Fill enqueues a fill of dst with the byte v.
func (q *Queue) Fill(dst mem.Extent, v byte) error {
	if err := q.dev.check(dst); err != nil {
		return fmt.Errorf("enqueue fill on %s: %w", q, err)
	}
	at, n := dst.Dev(), uint64(dst.Len)
	return q.enqueue(op{name: "fill", run: func() error { return q.crew.fill(at, n, v) }})
}

// HasKernel reports whether there is a kernel of that name.
func (q *Queue) HasKernel(name string) bool { return kernel.Named(name) != nil }

// Launch enqueues a kernel. Its arguments are read when it runs.
func (q *Queue) Launch(k *device.Kernel) error {
	named := kernel.Named(k.Name)
	var err error
	switch {
	case named == nil:
		err = fmt.Errorf("no such kernel: %w", errdefs.ErrNotFound)
	case k.NArgs != named.NArgs || k.CTAs < 0:
		err = errInvalid("%d arguments, %d thread blocks", k.NArgs, k.CTAs)
	}
	if err != nil {
		return fmt.Errorf("enqueue kernel %s on %s: %w", k.Name, q, err)
	}
	args, ctas := k.Args, max(k.CTAs, 1)
	return q.enqueue(op{name: k.Name, run: func() error { return q.crew.launch(named, &args, ctas) }})
}

// Record returns an event. It also works on a broken queue, whose events return the queue's error.
func (q *Queue) Record() (device.Event, error) {
	e := newEvent(q)
	if err := q.enqueue(op{name: "record event", event: e}); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// Wait makes later work wait for e, an event of any queue of any host device. If e's work failed,
// this queue fails too, because later work would use bytes that were not copied.
func (q *Queue) Wait(e device.Event) error {
	ev, ok := e.(*Event)
	if !ok || ev == nil {
		return fmt.Errorf("enqueue wait on %s: %w", q, errInvalid("%T is not an event of a host device", e))
	}
	return q.enqueue(op{name: "wait for event", run: func() error {
		select {
		case <-ev.done:
		case <-q.dev.dead:
			return errClosed()
		}
		if err := ev.verdict(); err != nil {
			return fmt.Errorf("the work of the event failed: %w", err)
		}
		return nil
	}})
}

// Close waits until the queue is idle and closes it. It returns a failure that no event and no call
// has returned.
func (q *Queue) Close(ctx context.Context) error {
	idle := newEvent(q)
	defer idle.Close()
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil
	}
	q.push(op{event: idle})
	q.mu.Unlock()
	select {
	case <-idle.done:
	case <-ctx.Done():
		return fmt.Errorf("close %s: %w", q, context.Cause(ctx))
	}
	q.mu.Lock()
	q.closed = true
	unreportedErr := q.err
	if q.reported {
		unreportedErr = nil
	}
	q.mu.Unlock()
	q.dev.forget(q)
	if unreportedErr != nil {
		return fmt.Errorf("close %s: unreported failure: %w", q, unreportedErr)
	}
	return nil
}

// enqueue adds o. It fails if the queue is closed, or if the queue is broken and o is work.
func (q *Queue) enqueue(o op) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return fmt.Errorf("enqueue %s on %s: it is closed: %w", o.name, q, errdefs.ErrClosed)
	case q.err != nil && o.event == nil:
		q.reported = true
		return fmt.Errorf("enqueue %s on %s: %w: %w", o.name, q, errdefs.ErrBroken, q.err)
	}
	q.push(o)
	return nil
}

// push appends o, and starts a goroutine unless one is already running the work. The caller holds
// mu.
func (q *Queue) push(o op) {
	q.ops = append(q.ops, o)
	if !q.running {
		q.running = true
		q.dev.work.Go(q.drain)
	}
}

// drain runs enqueued work until there is none left.
func (q *Queue) drain() {
	for {
		q.mu.Lock()
		batch := q.ops
		q.running = len(batch) > 0
		q.ops, q.freeOps = q.freeOps[:0], batch
		q.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		for i := range batch {
			q.do(&batch[i])
			batch[i] = op{}
		}
	}
}

func (q *Queue) do(o *op) {
	q.mu.Lock()
	err := q.err
	q.mu.Unlock()
	switch {
	case o.event != nil:
		o.event.err = err
		close(o.event.done)
	case err == nil:
		if err := o.run(); err != nil {
			q.fail(fmt.Errorf("%s on %s: %w", o.name, q, err))
		}
	}
}

// fail breaks the queue unless it is already broken.
func (q *Queue) fail(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err == nil {
		q.err = err
	}
}

// abandon closes the queue of a closing device. Work that has not started fails.
func (q *Queue) abandon() {
	q.fail(errClosed())
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}

// Event is a point in a queue. It implements device.Event.
type Event struct {
	queue *Queue
	done  chan struct{}
	err   error // written before done is closed
	once  sync.Once
}

func newEvent(q *Queue) *Event {
	leak.Add(leak.Events, 1)
	return &Event{queue: q, done: make(chan struct{})}
}

// Done reports whether the work has completed. Failed work counts as completed: it no longer
// accesses memory.
func (e *Event) Done() (bool, error) {
	select {
	case <-e.done:
		return true, e.verdict()
	default:
		return false, nil
	}
}

// Wait waits until the work has completed and returns its error. If ctx ends first, Wait returns
// the cause of ctx.
func (e *Event) Wait(ctx context.Context) error {
	if done, err := e.Done(); done {
		return err
	}
	select {
	case <-e.done:
		return e.verdict()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// verdict returns the error of a completed event, and marks the queue's failure as returned.
func (e *Event) verdict() error {
	if e.err != nil {
		e.queue.mu.Lock()
		defer e.queue.mu.Unlock()
		e.queue.reported = true
	}
	return e.err
}

// Close releases the event. A queue that waits for it continues to wait.
func (e *Event) Close() { e.once.Do(func() { leak.Add(leak.Events, -1) }) }
