package cuda

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/internal/sys/cuda"
)

// eventPool holds driver events that are not in use. An event may be recorded again while its
// earlier work is running, because a wait captures the event's state when the wait is enqueued.
type eventPool struct {
	mu       sync.Mutex
	free     []cuda.Event
	made     int // number of all events, in use or not
	reserved int // number of events to create in advance
}

// reserve adds n events to the reservation, and returns the number to create.
func (p *eventPool) reserve(n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reserved += n
	return max(p.reserved-p.made, 0)
}

// release undoes reserve. The events stay for later reservations.
func (p *eventPool) release(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reserved -= n
}

// count counts a created event.
func (p *eventPool) count() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.made++
}

func (p *eventPool) get() (cuda.Event, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) == 0 {
		return 0, false
	}
	e := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	return e, true
}

func (p *eventPool) put(e cuda.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, e)
}

func (p *eventPool) drain() []cuda.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.free
	p.free = nil
	return all
}

func (p *eventPool) len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.free)
}

// event is a recorded CUDA event.
type event struct {
	dev    *Device
	handle cuda.Event
	done   atomic.Bool // a completed event stays completed, even if the device breaks or closes
	closed atomic.Bool
	due    atomic.Pointer[time.Time] // expected time of completion; nil if unknown
}

var _ device.ExpectedEvent = (*event)(nil)

// Record returns an event that is done once all work enqueued so far is done.
func (q *queue) Record() (device.Event, error) {
	if err := q.usable(); err != nil {
		return nil, fmt.Errorf("record event: %w", err)
	}
	e, err := q.dev.record(q.stream)
	if err != nil {
		return nil, fmt.Errorf("record event: %w", err)
	}
	return e, nil
}

// record records an event on a stream of the device's context.
func (d *Device) record(st cuda.Stream) (*event, error) {
	h, ok := d.events.get()
	if !ok {
		var err error
		if h, err = d.newEvent(); err != nil {
			return nil, err
		}
	}
	if err := d.pushContext(); err != nil {
		d.events.put(h)
		return nil, err
	}
	defer d.popContext()
	if r := d.api.EventRecord(h, st); r != cuda.Success {
		d.events.put(h)
		return nil, d.fail(r, "cuEventRecord", "stream=%#x", st)
	}
	leak.Add(leak.Events, 1)
	return &event{dev: d, handle: h}, nil
}

func (d *Device) newEvent() (cuda.Event, error) {
	mode, err := d.pushContextRelaxed()
	if err != nil {
		return 0, err
	}
	defer d.popContextRelaxed(mode)
	h, r := d.api.EventCreate(cuda.EventDisableTiming)
	if r != cuda.Success {
		return 0, d.fail(r, "cuEventCreate", "flags=disable-timing")
	}
	d.events.count()
	return h, nil
}

// reserveEvents creates events in advance.
func (d *Device) reserveEvents(n int) error {
	for range d.events.reserve(n) {
		h, err := d.newEvent()
		if err != nil {
			d.events.release(n)
			return err
		}
		d.events.put(h)
	}
	return nil
}

// Wait makes later work of the queue wait for e.
func (q *queue) Wait(e device.Event) error {
	if err := q.usable(); err != nil {
		return fmt.Errorf("wait on queue: %w", err)
	}
	ev, ok := e.(*event)
	if !ok {
		return fmt.Errorf("wait on queue: %T is not a CUDA event: %w", e, errdefs.ErrInvalid)
	}
	if err := ev.usable(); err != nil {
		return fmt.Errorf("wait on queue: %w", err)
	}
	d := q.dev
	if err := d.pushContext(); err != nil {
		return fmt.Errorf("wait on queue: %w", err)
	}
	defer d.popContext()
	if r := d.api.StreamWaitEvent(q.stream, ev.handle); r != cuda.Success {
		return fmt.Errorf("wait on queue: %w", d.fail(r, "cuStreamWaitEvent", ""))
	}
	return nil
}

func (e *event) usable() error {
	if e.closed.Load() {
		return fmt.Errorf("event was closed: %w", errdefs.ErrClosed)
	}
	return nil
}

// poll queries the driver. cuEventQuery needs no context, but a graph capture in another thread
// forbids it.
func (e *event) poll() (bool, error) {
	if err := e.usable(); err != nil {
		return false, err
	}
	if e.done.Load() {
		return true, nil
	}
	d := e.dev
	if err := d.broken(); err != nil {
		return false, err
	}
	// An event may be used after the device is closed, but its handle must not.
	if err := d.begin(); err != nil {
		return false, err
	}
	defer d.end()
	runtime.LockOSThread()
	before, r := d.api.ThreadExchangeStreamCaptureMode(cuda.CaptureRelaxed)
	if r != cuda.Success {
		runtime.UnlockOSThread()
		return false, d.fail(r, "cuThreadExchangeStreamCaptureMode", "mode=relaxed")
	}
	state := d.api.EventQuery(e.handle)
	_, r = d.api.ThreadExchangeStreamCaptureMode(before)
	runtime.UnlockOSThread()
	switch {
	case state == cuda.Success:
		e.done.Store(true)
		return true, nil
	case state != cuda.ErrorNotReady:
		err := d.fail(state, "cuEventQuery", "")
		return false, errors.Join(d.broken(), err)
	case r != cuda.Success:
		return false, d.fail(r, "cuThreadExchangeStreamCaptureMode", "mode=%d", before)
	}
	return false, nil
}

// Done reports whether the work is done. If it returns an error, done is false, because the GPU may
// still access the work's memory.
func (e *event) Done() (bool, error) {
	done, err := e.poll()
	if err != nil {
		return false, fmt.Errorf("query event: %w", err)
	}
	return done, nil
}

// Expect implements device.ExpectedEvent.
func (e *event) Expect(at time.Time) { e.due.Store(&at) }

// Wait waits until the work is done. If ctx ends first, Wait returns the context's cause.
func (e *event) Wait(ctx context.Context) error {
	var due time.Time
	if at := e.due.Load(); at != nil {
		due = *at
	}
	if err := await(ctx, e, due); err != nil {
		return fmt.Errorf("wait for event: %w", err)
	}
	return nil
}

// Close releases the event. It needs no driver call, and may be called twice.
func (e *event) Close() {
	if !e.closed.CompareAndSwap(false, true) {
		return
	}
	leak.Add(leak.Events, -1)
	e.dev.events.put(e.handle)
}
