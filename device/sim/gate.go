package sim

import (
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// RecordOn records an event on the host program's stream: a queue of this device, named by Queue.Handle.
func (q *Queue) RecordOn(stream uintptr) (device.Event, error) {
	const call = "simEventRecord"
	host, err := q.host(call, stream)
	if err != nil {
		return nil, fmt.Errorf("record event on host stream: %w", err)
	}
	return host.Record()
}

// WaitValue makes the host program's stream wait until the word is at least value, compared as
// CUDA does: the difference, as a signed number, is not negative.
func (q *Queue) WaitValue(stream uintptr, word mem.Extent, value uint64) error {
	const call = "simStreamWaitValue64"
	err := q.call(OpWait, call)
	var host *Queue
	if err == nil {
		host, err = q.host(call, stream)
	}
	if err == nil {
		err = q.dev.checkExtent(call, word)
	}
	if err == nil && (word.Len < 8 || word.Dev()%8 != 0 || word.Region.Kind() != mem.KindHostPinned) {
		err = errInvalidValue(call, fmt.Sprintf("address=%#x, bytes=%d", uint64(word.Dev()), word.Len), "not an aligned 64-bit word in pinned memory")
	}
	if err == nil {
		err = host.enqueue(op{kind: opGate, one: [1]piece{{dst: uint64(word.Dev()), n: 8}}, word: value})
	}
	if err != nil {
		return fmt.Errorf("make host stream wait for a value: %w", err)
	}
	return nil
}

// host returns the host program's stream, which must not be capturing.
func (q *Queue) host(call string, stream uintptr) (*Queue, error) {
	args := fmt.Sprintf("stream=%#x", stream)
	host := q.dev.byHandle(stream)
	if host == nil {
		return nil, native(call, args, 400, "INVALID_HANDLE", "no stream of this device", errdefs.ErrInvalid)
	}
	host.mu.Lock()
	defer host.mu.Unlock()
	if host.capturing {
		return nil, native(call, args, 900, "STREAM_CAPTURE_UNSUPPORTED", "the stream is capturing a graph", errdefs.ErrNotSupported)
	}
	return host, nil
}
