package cuda

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/internal/sys/cuda"
	"github.com/kvlane/kvlane/mem"
)

// queue is a CUDA stream that does not synchronise with the default stream. It implements
// device.Queue. The types launcher and batcher add the optional interfaces.
type queue struct {
	dev    *Device
	stream cuda.Stream
	events int // number of events reserved in advance
	// closed is atomic, because Device.Close may run on another goroutine than the queue's user.
	closed atomic.Bool
}

// OpenQueue opens a queue. It is also a BatchCopier and a Launcher, unless Lacks returns a reason.
func (d *Device) OpenQueue(o device.QueueOptions) (device.Queue, error) {
	q, err := d.openQueue(o)
	if err != nil {
		return nil, fmt.Errorf("open queue on device %d: %w", d.info.Index, err)
	}
	return q.able(), nil
}

func (d *Device) openQueue(o device.QueueOptions) (*queue, error) {
	if err := d.begin(); err != nil {
		return nil, err
	}
	defer d.end()
	mode, err := d.pushContextRelaxed()
	if err != nil {
		return nil, err
	}
	defer d.popContextRelaxed(mode)
	priority := 0
	if o.HighPriority {
		priority = d.priority
	}
	if err := d.reserveEvents(o.Events); err != nil {
		return nil, err
	}
	st, r := d.api.StreamCreateWithPriority(cuda.StreamNonBlocking, priority)
	if r != cuda.Success {
		d.events.release(o.Events)
		return nil, d.fail(r, "cuStreamCreateWithPriority", "flags=non-blocking, priority=%d", priority)
	}
	q := &queue{dev: d, stream: st, events: o.Events}
	leak.Add(leak.Queues, 1)
	d.mu.Lock()
	d.queues[q] = struct{}{}
	d.mu.Unlock()
	return q, nil
}

// Handle returns the queue's CUstream. A program that passes it to other code must not capture it.
func (q *queue) Handle() uintptr { return uintptr(q.stream) }

// able returns q as a type with exactly the optional interfaces that its device supports.
func (q *queue) able() device.Queue {
	l, b := launcher{q: q, params: new(cuda.KernelParams)}, batcher{q: q, a: new(batchArrays)}
	switch d := q.dev; {
	case d.kernels != nil && d.batch:
		return &struct {
			*queue
			launcher
			batcher
		}{q, l, b}
	case d.kernels != nil:
		return &struct {
			*queue
			launcher
		}{q, l}
	case d.batch:
		return &struct {
			*queue
			batcher
		}{q, b}
	}
	return q
}

// usable returns the reason why no work can be enqueued, or nil.
func (q *queue) usable() error {
	if q.closed.Load() {
		return fmt.Errorf("queue: %w", errdefs.ErrClosed)
	}
	return q.dev.broken()
}

// Copy enqueues one copy by a copy engine.
func (q *queue) Copy(dst, src mem.Extent) error {
	if err := q.usable(); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	if err := checkCopy(dst, src); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	if dst.Len == 0 {
		return nil
	}
	d := q.dev
	if err := d.pushContext(); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	defer d.popContext()
	for dst.Len > 0 {
		n, _, _ := firstRegistration(dst, src)
		if r := d.api.MemcpyAsync(cuda.DevicePtr(dst.Dev()), cuda.DevicePtr(src.Dev()), uint64(n), q.stream); r != cuda.Success {
			return fmt.Errorf("copy: %w", d.fail(r, "cuMemcpyAsync", "dst=%#x, src=%#x, bytes=%d", dst.Dev(), src.Dev(), n))
		}
		dst, src = skip(dst, n), skip(src, n)
	}
	return nil
}

// Fill enqueues a fill of dst with the byte v.
func (q *queue) Fill(dst mem.Extent, v byte) error {
	if err := q.usable(); err != nil {
		return fmt.Errorf("fill: %w", err)
	}
	if err := checkExtent(dst); err != nil {
		return fmt.Errorf("fill: %w", err)
	}
	if dst.Len == 0 {
		return nil
	}
	d := q.dev
	if err := d.pushContext(); err != nil {
		return fmt.Errorf("fill: %w", err)
	}
	defer d.popContext()
	for dst.Len > 0 {
		n, _ := dst.Registration()
		if r := d.api.MemsetD8Async(cuda.DevicePtr(dst.Dev()), v, uint64(n), q.stream); r != cuda.Success {
			return fmt.Errorf("fill: %w", d.fail(r, "cuMemsetD8Async", "dst=%#x, bytes=%d", dst.Dev(), n))
		}
		dst = skip(dst, n)
	}
	return nil
}

// firstRegistration returns the length of the first part of a copy that is inside one registration
// on either side, and the numbers of these registrations.
func firstRegistration(dst, src mem.Extent) (bytes, to, from int64) {
	n, to := dst.Registration()
	m, from := src.Registration()
	return min(n, m), to, from
}

// skip returns e without its first n bytes.
func skip(e mem.Extent, n int64) mem.Extent {
	return mem.Extent{Region: e.Region, Off: e.Off + n, Len: e.Len - n}
}

// checkExtent returns an error if the GPU cannot use e.
func checkExtent(e mem.Extent) error {
	if err := e.Validate(); err != nil {
		return err
	}
	if e.Dev() == 0 {
		return fmt.Errorf("%s has no device address: %w", e.Region, errdefs.ErrInvalid)
	}
	return nil
}

func checkCopy(dst, src mem.Extent) error {
	if err := checkExtent(dst); err != nil {
		return fmt.Errorf("destination: %w", err)
	}
	if err := checkExtent(src); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	if dst.Len != src.Len {
		return fmt.Errorf("%d bytes of source for %d of destination: %w", src.Len, dst.Len, errdefs.ErrInvalid)
	}
	return nil
}

// poll reports whether the queue is idle.
func (q *queue) poll() (bool, error) {
	d := q.dev
	mode, err := d.pushContextRelaxed()
	if err != nil {
		return false, err
	}
	defer d.popContextRelaxed(mode)
	switch r := d.api.StreamQuery(q.stream); r {
	case cuda.Success:
		return true, nil
	case cuda.ErrorNotReady:
		return false, nil
	default:
		return false, d.fail(r, "cuStreamQuery", "")
	}
}

// Close waits until the queue is idle and closes it. On a broken device it closes the queue at once
// and returns the fault. It is then unknown whether the queue's work has completed or is still
// running.
func (q *queue) Close(ctx context.Context) error {
	if q.closed.Load() {
		return nil
	}
	d := q.dev
	if err := d.begin(); err != nil {
		return fmt.Errorf("close queue: %w", err)
	}
	defer d.end()
	failed := await(ctx, q, time.Time{})
	if failed != nil && d.fault.Load() == nil {
		return fmt.Errorf("close queue: %w", failed)
	}
	if !q.closed.CompareAndSwap(false, true) {
		return nil
	}
	d.mu.Lock()
	delete(d.queues, q)
	d.mu.Unlock()
	leak.Add(leak.Queues, -1)
	d.events.release(q.events)
	if err := errors.Join(d.broken(), q.destroy()); err != nil {
		return fmt.Errorf("close queue: %w", err)
	}
	return nil
}

func (q *queue) destroy() error {
	d := q.dev
	mode, err := d.pushContextRelaxed()
	if err != nil {
		return err
	}
	defer d.popContextRelaxed(mode)
	return d.check(d.api.StreamDestroy(q.stream), "cuStreamDestroy_v2", "")
}

// abandonQueues closes the remaining queues when a device closes. idle is set if no work of the
// device can still be running.
func (d *Device) abandonQueues() (idle bool, err error) {
	idle = d.fault.Load() == nil
	if len(d.queues) == 0 {
		return idle, d.broken()
	}
	errs := []error{fmt.Errorf("close device %d: %d queues were not closed: %w", d.info.Index, len(d.queues), errdefs.ErrBusy)}
	for q := range d.queues {
		q.closed.Store(true)
		leak.Add(leak.Queues, -1)
		done, err := q.poll()
		idle = idle && done
		// A destroyed stream still completes its enqueued work; only its handle becomes invalid.
		errs = append(errs, err, q.destroy())
	}
	return idle, errors.Join(errs...)
}
