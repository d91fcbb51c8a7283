package sim

import (
	"fmt"
	"math"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/internal/kernel"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// hostStream is a stream of the host program, simulated by a queue.
type hostStream struct{ queue *Queue }

var _ device.StreamAdopter = (*Device)(nil)

// WaitLimit implements device.StreamAdopter.
func (d *Device) WaitLimit() int { return math.MaxInt }

// AdoptStream implements device.StreamAdopter. The streams of the host program are queues of this
// device, identified by Queue.Handle. There is no default stream.
func (d *Device) AdoptStream(handle uintptr) (device.HostStream, error) {
	const call = "simStreamGetCtx"
	h := &hostStream{queue: d.byHandle(handle)}
	var err error
	if h.queue == nil {
		err = native(call, fmt.Sprintf("stream=%#x", handle), 400, "INVALID_HANDLE", "not a stream of this device", errdefs.ErrInvalid)
	} else {
		err = h.capturing(call)
	}
	if err != nil {
		return nil, fmt.Errorf("adopt stream %#x: %w", handle, err)
	}
	return h, nil
}

// capturing returns an error if the stream is capturing a graph.
func (h *hostStream) capturing(call string) error {
	h.queue.mu.Lock()
	defer h.queue.mu.Unlock()
	if h.queue.capturing {
		args := fmt.Sprintf("stream=%#x", h.queue.handle)
		return native(call, args, 900, "STREAM_CAPTURE_UNSUPPORTED", "the stream is capturing a graph", errdefs.ErrNotSupported)
	}
	return nil
}

// Record implements device.HostStream.
func (h *hostStream) Record() (device.Event, error) {
	if err := h.capturing("simEventRecord"); err != nil {
		return nil, fmt.Errorf("record event on host stream: %w", err)
	}
	return h.queue.Record()
}

// WaitValue implements device.HostStream.
func (h *hostStream) WaitValue(word mem.Extent, value uint64) error {
	const call = "simStreamWaitValue64"
	q := h.queue
	err := h.word(OpWait, call, word)
	if err == nil {
		q.dev.park()
		if err = q.enqueue(op{kind: opGate, one: [1]kernel.Piece{{Dst: word.Dev(), N: 8}}, word: value}); err != nil {
			q.dev.unpark()
		}
	}
	if err != nil {
		return fmt.Errorf("make host stream wait for a value: %w", err)
	}
	return nil
}

// WriteValue implements device.HostStream.
func (h *hostStream) WriteValue(word mem.Extent, value uint64) error {
	err := h.word(OpStore, "simStreamWriteValue64", word)
	if err == nil {
		err = h.queue.enqueue(op{kind: opStore, one: [1]kernel.Piece{{Dst: word.Dev(), N: 8}}, word: value})
	}
	if err != nil {
		return fmt.Errorf("have host stream write a value: %w", err)
	}
	return nil
}

// word checks a call that enqueues an operation on a word, and applies the faults of the call.
func (h *hostStream) word(name, call string, word mem.Extent) error {
	q := h.queue
	if err := q.call(name, call); err != nil {
		return err
	}
	if err := h.capturing(call); err != nil {
		return err
	}
	if err := q.dev.checkExtent(call, word); err != nil {
		return err
	}
	if word.Len < 8 || word.Dev()%8 != 0 || word.Region.Kind() != mem.KindHostPinned {
		return errInvalidValue(call, fmt.Sprintf("address=%#x, bytes=%d", word.Dev(), word.Len), "not an aligned 64-bit word in pinned memory")
	}
	return nil
}

// park counts a wait for a word that is enqueued on a stream of the host program.
func (d *Device) park() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.parked++; d.parked == 1 {
		d.unparked = make(chan struct{})
	}
}

// unpark counts the end of such a wait.
func (d *Device) unpark() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.parked--; d.parked == 0 {
		close(d.unparked)
	}
}

// standStill waits until no stream of the host program waits for a word. Without
// Options.WaitsHoldAllocation it returns at once.
func (d *Device) standStill(call string) error {
	for d.o.WaitsHoldAllocation {
		d.mu.Lock()
		parked, over := d.parked, d.unparked
		d.mu.Unlock()
		if parked == 0 {
			return nil
		}
		select {
		case <-over:
		case <-d.dead:
			return errClosed(call)
		}
	}
	return nil
}
