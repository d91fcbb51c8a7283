package sim

import (
	"context"
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/internal/kernel"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// Queue is a queue of a simulated device. It implements device.Queue and every optional interface
// of queues.
type Queue struct {
	dev    *Device
	id     int
	handle uintptr
	exec   executor // owned by the goroutine that runs operations

	wake    chan struct{} // capacity 1; a token means that ops may not be empty
	quit    chan struct{}
	stopped chan struct{}

	mu        sync.Mutex
	ops       []op // ops[head:] are pending
	head      int
	freeLists [][]kernel.Piece // piece lists of past batches
	err       error            // sticky
	reported  bool             // err was returned to a caller
	capturing bool
	closed    bool
}

var (
	_ device.BatchCopier  = (*Queue)(nil)
	_ device.KernelLister = (*Queue)(nil)
)

// handleStride makes handles differ from small numbers, which bugs tend to produce.
const handleStride = 0x1000

func newQueue(d *Device, id int) *Queue {
	q := &Queue{
		dev: d, id: id, handle: uintptr(firstAddr&0xffff_0000_0000_0000 + uint64(d.o.Index)<<32 + uint64(id)*handleStride),
		wake: make(chan struct{}, 1), quit: make(chan struct{}), stopped: make(chan struct{}),
	}
	q.exec.space = d.space
	q.exec.machine = kernel.Machine{Memory: &q.exec, Still: d.o.Still}
	return q
}

// String names the queue for errors.
func (q *Queue) String() string {
	return fmt.Sprintf("queue %d of simulated device %d", q.id, q.dev.o.Index)
}

// Handle returns the queue's native handle. Tests pass it to AdoptStream like a host program.
func (q *Queue) Handle() uintptr { return q.handle }

// SetCapturing sets whether the queue reports that it is capturing a graph, like a stream of a host
// program.
func (q *Queue) SetCapturing(on bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.capturing = on
}

// Copy enqueues one copy.
func (q *Queue) Copy(dst, src mem.Extent) error {
	const call = "simMemcpyAsync"
	p, err := q.dev.piece(call, dst, src)
	if err == nil {
		err = q.call(OpCallCopy, call)
	}
	if err == nil {
		err = q.enqueue(op{kind: opCopy, one: [1]kernel.Piece{p}})
	}
	if err != nil {
		return fmt.Errorf("enqueue copy on %s: %w", q, err)
	}
	return nil
}

// CopyBatch enqueues the copies, all or none.
func (q *Queue) CopyBatch(dst, src []mem.Extent) error {
	const call = "simMemcpyBatchAsync"
	if err := q.copyBatch(call, dst, src); err != nil {
		return fmt.Errorf("enqueue %d copies on %s: %w", len(dst), q, err)
	}
	return nil
}

func (q *Queue) copyBatch(call string, dst, src []mem.Extent) error {
	if len(dst) != len(src) {
		return errInvalidValue(call, fmt.Sprintf("dsts=%d, srcs=%d", len(dst), len(src)), "")
	}
	pieces := q.borrow(len(dst))
	for i := range dst {
		p, err := q.dev.piece(call, dst[i], src[i])
		if err != nil {
			q.giveBack(pieces)
			return fmt.Errorf("copy %d: %w", i, err)
		}
		pieces = append(pieces, p)
	}
	err := q.call(OpCallBatch, call)
	if err == nil {
		err = q.enqueue(op{kind: opBatch, pieces: pieces})
	}
	if err != nil {
		q.giveBack(pieces)
	}
	return err
}

// Fill enqueues a fill of dst with the byte v.
func (q *Queue) Fill(dst mem.Extent, v byte) error {
	const call = "simMemsetD8Async"
	err := q.dev.checkExtent(call, dst)
	if err == nil {
		err = q.call(OpCallFill, call)
	}
	if err == nil {
		err = q.enqueue(op{kind: opFill, value: v, one: [1]kernel.Piece{{Dst: dst.Dev(), N: uint64(dst.Len)}}})
	}
	if err != nil {
		return fmt.Errorf("enqueue fill on %s: %w", q, err)
	}
	return nil
}

// Launch enqueues a kernel. Its arguments are checked when it runs.
func (q *Queue) Launch(k *device.Kernel) error {
	const call = "simLaunchKernel"
	kern := kernel.Named(k.Name)
	var err error
	switch {
	case kern == nil:
		err = native(call, "kernel="+k.Name, 500, "NOT_FOUND", "no such kernel", errdefs.ErrNotFound)
	case k.NArgs != kern.NArgs || k.CTAs < 0:
		err = errInvalidValue(call, fmt.Sprintf("kernel=%s, args=%d, ctas=%d", k.Name, k.NArgs, k.CTAs), "")
	default:
		err = q.call(OpCallLaunch, call)
	}
	if err == nil {
		err = q.enqueue(op{kind: opLaunch, kernel: kern, args: k.Args, ctas: max(k.CTAs, 1)})
	}
	if err != nil {
		return fmt.Errorf("enqueue kernel on %s: %w", q, err)
	}
	return nil
}

// HasKernel reports whether there is a kernel of that name.
func (q *Queue) HasKernel(name string) bool { return kernel.Named(name) != nil }

// Record returns an event. It also works on a broken queue, whose events return the queue's error.
func (q *Queue) Record() (device.Event, error) {
	if f, hit := q.dev.o.Faults.Hit(OpRecord); hit {
		return nil, fmt.Errorf("record event on %s: %w", q, errInjected("simEventRecord", &f))
	}
	e := newEvent(q)
	if err := q.enqueue(op{kind: opRecord, event: e}); err != nil {
		e.Close()
		return nil, fmt.Errorf("record event on %s: %w", q, err)
	}
	return e, nil
}

// Wait makes later work wait for e, an event of any queue of any simulated device. If e's work
// failed, this queue fails too, because later work would use bytes that were not copied.
func (q *Queue) Wait(e device.Event) error {
	const call = "simStreamWaitEvent"
	err := q.call(OpWait, call)
	ev, ok := e.(*Event)
	switch {
	case err != nil:
	case !ok || ev == nil:
		err = errInvalidValue(call, fmt.Sprintf("event=%T", e), "not an event of a simulated device")
	default:
		err = ev.usable("make " + q.String() + " wait for")
	}
	if err == nil {
		err = q.enqueue(op{kind: opWait, event: ev})
	}
	if err != nil {
		return fmt.Errorf("enqueue wait on %s: %w", q, err)
	}
	return nil
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
	q.push(op{kind: opRecord, event: idle})
	q.mu.Unlock()
	q.dev.notify(q)

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
	if q.dev.forget(q) {
		q.stop()
	}
	if unreportedErr != nil {
		return fmt.Errorf("close %s: unreported failure: %w", q, unreportedErr)
	}
	return nil
}
