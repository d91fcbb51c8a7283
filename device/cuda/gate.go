package cuda

import (
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/cuda"
	"github.com/kvlane/kvlane/mem"
)

// wordBytes is the size, and the alignment, of what a stream can wait for.
const wordBytes = 8

// probeGate finds out whether streams of this GPU can wait for a word in memory.
func (d *Device) probeGate() error {
	const what = "gates for the host program's streams"
	if d.api.StreamWaitValue64 == nil {
		d.lacks = append(d.lacks, d.lack(what, "driver "+d.info.DriverVersion+" has no cuStreamWaitValue64"))
		return nil
	}
	can, err := d.attribute(cuda.AttrStreamMemOps64)
	if err != nil {
		return err
	}
	if d.gate = can != 0; !d.gate {
		d.lacks = append(d.lacks, d.lack(what, "CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS is 0"))
	}
	return nil
}

// gate makes a queue a device.HostGate. The host program's streams are those of the GPU's primary context, which is the
// CUDA runtime's. Zero is its default stream.
type gate struct{ q *queue }

// RecordOn records an event on a stream of the host program. That the stream does not begin to capture meanwhile is
// the host program's to see to.
func (g gate) RecordOn(stream uintptr) (device.Event, error) {
	if err := g.ready(cuda.Stream(stream)); err != nil {
		return nil, fmt.Errorf("record event on stream %#x: %w", stream, err)
	}
	e, err := g.q.dev.record(cuda.Stream(stream))
	if err != nil {
		return nil, fmt.Errorf("record event on stream %#x: %w", stream, err)
	}
	return e, nil
}

// WaitValue makes a stream of the host program wait until the word is at least value, compared as the hardware does: the
// difference, as a signed number, is not negative.
func (g gate) WaitValue(stream uintptr, word mem.Extent, value uint64) error {
	if err := checkWord(word); err != nil {
		return fmt.Errorf("make stream %#x wait: %w", stream, err)
	}
	if err := g.ready(cuda.Stream(stream)); err != nil {
		return fmt.Errorf("make stream %#x wait: %w", stream, err)
	}
	d := g.q.dev
	if err := d.enter(); err != nil {
		return fmt.Errorf("make stream %#x wait: %w", stream, err)
	}
	defer d.leave()
	r := d.api.StreamWaitValue64(cuda.Stream(stream), cuda.DevicePtr(word.Dev()), value, cuda.StreamWaitValueGEQ)
	if r != cuda.Success {
		return fmt.Errorf("make stream wait: %w", d.fail(r, "cuStreamWaitValue64_v2", "stream=%#x, address=%#x, value=%d", stream, word.Dev(), value))
	}
	return nil
}

func checkWord(word mem.Extent) error {
	if err := checkExtent(word); err != nil {
		return err
	}
	if word.Region.Kind() != mem.KindHostPinned || word.Len < wordBytes || word.Dev()%wordBytes != 0 {
		return fmt.Errorf("%d bytes at %#x of a %s are no aligned 64-bit word in pinned memory: %w",
			word.Len, word.Dev(), word.Region, errdefs.ErrInvalid)
	}
	return nil
}

// ready refuses a stream that is capturing a graph: what is enqueued there runs when the graph is launched, if ever.
func (g gate) ready(st cuda.Stream) error {
	if err := g.q.usable(); err != nil {
		return err
	}
	d := g.q.dev
	mode, err := d.enterRelaxed()
	if err != nil {
		return err
	}
	defer d.leaveRelaxed(mode)
	status, r := d.api.StreamIsCapturing(st)
	if r != cuda.Success {
		return d.fail(r, "cuStreamIsCapturing", "stream=%#x", st)
	}
	if status != cuda.CaptureNone {
		return fmt.Errorf("the stream is capturing a graph: %w", errdefs.ErrNotSupported)
	}
	return nil
}
