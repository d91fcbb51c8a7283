package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

const (
	// probeBytes is moved each way by each path of a probe, in two pieces with a gap, so that a batch is one.
	probeBytes = 8 << 10
	// probeTimeout bounds the wait for one direction: a healthy device takes microseconds.
	probeTimeout = 10 * time.Second
)

// Opener opens a stream on a device that moves everything by one path.
type Opener func(dev device.Device, path stream.Path) (stream.Stream, error)

// ProbeDevice tries each path on dev: it copies a few KiB to the device and back and compares them. An ability is thus
// claimed only where it worked.
func ProbeDevice(ctx context.Context, dev device.Device, open Opener) Probe {
	const remedy = "a newer NVIDIA driver"
	return Probe{
		CopyEngine: Answered(tryPath(ctx, dev, open, stream.PathCopyEngine), remedy),
		Batch:      Answered(tryPath(ctx, dev, open, stream.PathCopyEngineBatch), remedy),
		Kernel:     Answered(tryPath(ctx, dev, open, stream.PathKernel), remedy),
	}
}

func tryPath(ctx context.Context, dev device.Device, open Opener, path stream.Path) (err error) {
	s, err := open(dev, path)
	if err != nil {
		return fmt.Errorf("open a %s stream: %w", path, err)
	}
	// A stream that cannot be closed still uses the memory, which is then left to the process's end.
	closed := false
	closeStream := func() error {
		if closed {
			return nil
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout)
		defer cancel()
		err := s.Close(ctx)
		closed = err == nil
		return err
	}
	defer func() { err = errors.Join(err, closeStream()) }()

	host, err := dev.AllocHost(2 * probeBytes)
	if err != nil {
		return fmt.Errorf("allocate pinned memory: %w", err)
	}
	gpu, err := dev.Alloc(2*probeBytes, device.AllocOptions{})
	if err != nil {
		return errors.Join(fmt.Errorf("allocate device memory: %w", err), dev.Free(host))
	}
	defer func() {
		if cerr := closeStream(); cerr != nil {
			return
		}
		err = errors.Join(err, dev.Free(gpu), dev.Free(host))
	}()
	return roundTrip(ctx, s, host, gpu, path)
}

// roundTrip copies the first half of host to gpu and from there to the second half, in two pieces each way.
func roundTrip(ctx context.Context, s stream.Stream, host, gpu *mem.Region, path stream.Path) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	want := host.Bytes()[:probeBytes]
	for i := range want {
		want[i] = byte(device.Mix64(uint64(i)))
	}
	const piece = probeBytes / 2
	halves := func(r *mem.Region, off, stride int64) []mem.Extent {
		return []mem.Extent{{Region: r, Off: off, Len: piece}, {Region: r, Off: off + stride, Len: piece}}
	}
	for _, b := range []*mem.Batch{
		{Dst: halves(gpu, 0, probeBytes), Src: halves(host, 0, piece)},
		{Dst: halves(host, probeBytes, piece), Src: halves(gpu, 0, probeBytes)},
	} {
		t, err := s.Submit(ctx, b)
		if err != nil {
			return fmt.Errorf("submit to the %s stream: %w", path, err)
		}
		if err := t.Wait(ctx); err != nil {
			return fmt.Errorf("copy %d bytes by %s: %w", probeBytes, path, err)
		}
		if c := t.Completion(); c.Path != path {
			return fmt.Errorf("copy by %s: it went by %s (%s)", path, c.Path, c.Reason)
		}
	}
	if !bytes.Equal(want, host.Bytes()[probeBytes:]) {
		return fmt.Errorf("copy %d bytes by %s: other bytes came back", probeBytes, path)
	}
	return nil
}
