package cuda

import (
	"fmt"
	"os"
	"strconv"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/cuda"
	"github.com/kvlane/kvlane/mem"
)

const (
	// wordBytes is the size and the alignment of a word that a stream can wait for.
	wordBytes = 8
	// hostEvents is the number of events that are created in advance for all streams of the host
	// program together.
	hostEvents = 256
)

// waits describes the GPU's ability to wait for a word in memory.
type waits struct {
	lack  error  // why streams cannot wait, or nil
	flags uint32 // of cuStreamWaitValue64
}

// probeWaits detects whether streams of this GPU can wait for a word in memory.
func (d *Device) probeWaits() error {
	const what = "waits of the host program's streams for loads"
	can, err := d.attribute(cuda.AttrStreamMemOps64)
	switch {
	case err != nil:
		return err
	case d.api.StreamWaitValue64 == nil || d.api.StreamWriteValue64 == nil:
		d.waits.lack = d.lack(what, "driver "+d.info.DriverVersion+" has no cuStreamWaitValue64 or no cuStreamWriteValue64")
	case can == 0:
		d.waits.lack = d.lack(what, "CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS is 0")
	}
	if d.waits.lack != nil {
		d.lacks = append(d.lacks, d.waits.lack)
		return nil
	}
	// Writes of a NIC may become visible after the word that reports them, unless the GPU sees them
	// in order.
	ordering, err := d.attribute(cuda.AttrRDMAOrdering)
	if err != nil {
		return err
	}
	flushes, err := d.attribute(cuda.AttrFlushRemoteWrites)
	if err != nil {
		return err
	}
	d.waits.flags = cuda.StreamWaitValueGEQ
	if flushes != 0 && cuda.RDMAScope(ordering) < cuda.RDMAScopeOwner {
		d.waits.flags |= cuda.StreamWaitValueFlush
	}
	return nil
}

// hostStream is a stream of the host program, in the GPU's primary context.
type hostStream struct {
	dev    *Device
	handle cuda.Stream
}

var _ device.StreamAdopter = (*Device)(nil)

const (
	maxConnections = 32 // the largest value of CUDA_DEVICE_MAX_CONNECTIONS that the driver uses
	// ownConnections is the number of hardware queues that are kept free for streams that end
	// waits. A stream uses a queue while it has work or waits (ADR 19). An engine uses up to four:
	// one each for its load stream, its dump stream, and their staged paths.
	ownConnections = 4
	// defaultWaitLimit is the limit if the variable is unset. The driver then has 8 queues, but
	// copies stalled while 4 streams waited on an H200 (ADR 19).
	defaultWaitLimit = 3
)

// WaitLimit implements device.StreamAdopter.
func (d *Device) WaitLimit() int { return waitLimit(os.Getenv("CUDA_DEVICE_MAX_CONNECTIONS")) }

// waitLimit returns the limit for a value of CUDA_DEVICE_MAX_CONNECTIONS. An invalid value counts
// as unset.
func waitLimit(connections string) int {
	n, err := strconv.Atoi(connections)
	if err != nil || n < 1 || n > maxConnections {
		return defaultWaitLimit
	}
	return max(1, n-ownConnections)
}

// AdoptStream implements device.StreamAdopter.
func (d *Device) AdoptStream(handle uintptr) (device.HostStream, error) {
	h := &hostStream{dev: d, handle: cuda.Stream(handle)}
	if err := h.adopt(); err != nil {
		return nil, fmt.Errorf("adopt stream %#x: %w", handle, err)
	}
	return h, nil
}

func (h *hostStream) adopt() error {
	if h.handle == cuda.StreamPerThread {
		return fmt.Errorf("the per-thread default stream is not supported, because it differs on every thread: %w", errdefs.ErrInvalid)
	}
	d := h.dev
	if err := h.begin(); err != nil {
		return err
	}
	defer d.end()
	ctx, err := h.context()
	if err != nil {
		return err
	}
	if ctx != d.ctx {
		return fmt.Errorf("it belongs to context %#x, and the primary context of device %d is %#x: %w", ctx, d.info.Index, d.ctx, errdefs.ErrInvalid)
	}
	d.adopting.Lock()
	defer d.adopting.Unlock()
	if !d.adopts {
		err = d.reserveEvents(hostEvents)
		d.adopts = err == nil
	}
	return err
}

func (h *hostStream) context() (cuda.Context, error) {
	d := h.dev
	mode, err := d.pushContextRelaxed()
	if err != nil {
		return 0, err
	}
	defer d.popContextRelaxed(mode)
	ctx, r := d.api.StreamGetCtx(h.handle)
	if r != cuda.Success {
		return 0, d.fail(r, "cuStreamGetCtx", "stream=%#x", h.handle)
	}
	return ctx, nil
}

// begin is Device.begin for calls that enqueue work on the stream. It fails if the stream is
// capturing a graph.
func (h *hostStream) begin() error {
	d := h.dev
	if err := d.begin(); err != nil {
		return err
	}
	err := d.broken()
	if err == nil {
		err = h.capturing()
	}
	if err != nil {
		d.end()
	}
	return err
}

// capturing returns an error if the stream is capturing a graph.
func (h *hostStream) capturing() error {
	d := h.dev
	mode, err := d.pushContextRelaxed()
	if err != nil {
		return err
	}
	defer d.popContextRelaxed(mode)
	status, r := d.api.StreamIsCapturing(h.handle)
	if r != cuda.Success {
		return d.fail(r, "cuStreamIsCapturing", "stream=%#x", h.handle)
	}
	if status != cuda.CaptureNone {
		return fmt.Errorf("the stream is capturing a graph: %w", errdefs.ErrNotSupported)
	}
	return nil
}

// Record implements device.HostStream.
func (h *hostStream) Record() (device.Event, error) {
	e, err := h.record()
	if err != nil {
		return nil, fmt.Errorf("record event on the host program's stream %#x: %w", h.handle, err)
	}
	return e, nil
}

func (h *hostStream) record() (*event, error) {
	if err := h.begin(); err != nil {
		return nil, err
	}
	defer h.dev.end()
	return h.dev.record(h.handle)
}

// WaitValue implements device.HostStream.
func (h *hostStream) WaitValue(word mem.Extent, value uint64) error {
	d := h.dev
	if err := h.memOp("cuStreamWaitValue64_v2", d.api.StreamWaitValue64, d.waits.flags, word, value); err != nil {
		return fmt.Errorf("make the host program's stream %#x wait: %w", h.handle, err)
	}
	return nil
}

// WriteValue implements device.HostStream.
func (h *hostStream) WriteValue(word mem.Extent, value uint64) error {
	if err := h.memOp("cuStreamWriteValue64_v2", h.dev.api.StreamWriteValue64, cuda.StreamWriteValue, word, value); err != nil {
		return fmt.Errorf("have the host program's stream %#x write: %w", h.handle, err)
	}
	return nil
}

// memOp enqueues a memory operation on the stream with the given driver call.
func (h *hostStream) memOp(
	name string, call func(cuda.Stream, cuda.DevicePtr, uint64, uint32) cuda.Result, flags uint32, word mem.Extent, value uint64,
) error {
	d := h.dev
	if d.waits.lack != nil {
		return d.waits.lack
	}
	if err := checkWord(word); err != nil {
		return err
	}
	if err := h.begin(); err != nil {
		return err
	}
	defer d.end()
	mode, err := d.pushContextRelaxed()
	if err != nil {
		return err
	}
	defer d.popContextRelaxed(mode)
	if r := call(h.handle, cuda.DevicePtr(word.Dev()), value, flags); r != cuda.Success {
		return d.fail(r, name, "stream=%#x, address=%#x, value=%d", h.handle, word.Dev(), value)
	}
	return nil
}

func checkWord(word mem.Extent) error {
	if err := checkExtent(word); err != nil {
		return err
	}
	if word.Region.Kind() != mem.KindHostPinned || word.Len < wordBytes || word.Dev()%wordBytes != 0 {
		return fmt.Errorf("%d bytes at %#x of a %s are not an aligned 64-bit word in pinned memory: %w",
			word.Len, word.Dev(), word.Region, errdefs.ErrInvalid)
	}
	return nil
}
