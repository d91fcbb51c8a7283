package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// side is one end of the copies: pinned host memory or device memory. Its source is written once.
// Its destination is overwritten before every point.
type side struct {
	src, dst *mem.Region // of equal length
	tag      uint64      // tag of the pattern in src

	// For device memory: a queue and memory for accessing it, separate from the measured streams.
	// checker is nil if the device does not support kernels.
	queue   device.Queue
	scratch *mem.Region
	checker *checker
}

// scratchBytes is the length of the pinned memory for accessing device memory. It is longer if a
// block is.
const scratchBytes = 16 << 20

// hostSide allocates a side in pinned memory.
func (r *rig) hostSide(bytes int64) (s side, err error) {
	s.tag = farTag
	for _, m := range []**mem.Region{&s.src, &s.dst} {
		if *m, err = r.AllocHost(r.dev, bytes); err != nil {
			return s, err
		}
	}
	return s, Parallel(bytes/wordBytes, func(from, to int64) error {
		WritePattern(s.src.Bytes()[from*wordBytes:to*wordBytes], s.tag, from*wordBytes)
		return nil
	})
}

// deviceSide allocates a side in device memory.
func (r *rig) deviceSide(ctx context.Context, dev device.Device, bytes, largest int64, tag uint64) (s side, err error) {
	s.tag = tag
	for _, m := range []**mem.Region{&s.src, &s.dst} {
		if *m, err = r.Alloc(dev, bytes); err != nil {
			return s, err
		}
	}
	// Allocate it before the queue, so that it outlives the work of the queue.
	if s.scratch, err = r.AllocHost(dev, max(min(scratchBytes, bytes), largest)); err != nil {
		return s, err
	}
	checked, err := r.AllocHost(dev, checkerBytes)
	if err != nil {
		return s, err
	}
	if s.queue, err = dev.OpenQueue(device.QueueOptions{}); err != nil {
		return s, fmt.Errorf("open queue: %w", err)
	}
	r.OnClose(s.queue.Close)
	if l, ok := s.queue.(device.Launcher); ok {
		s.checker = &checker{launcher: l, memory: checked}
	}
	return s, s.writeSource(ctx)
}

// writeSource writes the pattern to the source in device memory.
func (s *side) writeSource(ctx context.Context) error {
	for chunk := range chunks(s.src.Len(), s.scratch.Len()) {
		staged := mem.Extent{Region: s.scratch, Len: chunk.Len}
		err := Parallel(chunk.Len/wordBytes, func(from, to int64) error {
			WritePattern(staged.Bytes()[from*wordBytes:to*wordBytes], s.tag, chunk.Off+from*wordBytes)
			return nil
		})
		if err != nil {
			return err
		}
		if err := s.copyOne(ctx, mem.Extent{Region: s.src, Off: chunk.Off, Len: chunk.Len}, staged); err != nil {
			return fmt.Errorf("write the device's pattern: %w", err)
		}
	}
	return nil
}

// onHost reports whether the side is pinned host memory.
func (s *side) onHost() bool { return s.queue == nil }

// poison overwrites the start of the destination, so that missing copies are detected.
func (s *side) poison(ctx context.Context, bytes int64) error {
	if s.onHost() {
		host := s.dst.Bytes()[:bytes]
		return Parallel(bytes, func(from, to int64) error {
			fill(host[from:to])
			return nil
		})
	}
	err := s.queue.Fill(mem.Extent{Region: s.dst, Len: bytes}, poison)
	if err = errors.Join(err, s.drain(ctx)); err != nil {
		return fmt.Errorf("poison device memory: %w", err)
	}
	return nil
}

// fill overwrites b with the poison value.
func fill(b []byte) {
	if len(b) == 0 {
		return
	}
	b[0] = poison
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// copyOne copies with the side's queue and waits for it.
func (s *side) copyOne(ctx context.Context, dst, src mem.Extent) error {
	if err := s.queue.Copy(dst, src); err != nil {
		return err
	}
	return s.drain(ctx)
}

// drain waits until the side's queue is idle.
func (s *side) drain(ctx context.Context) error {
	e, err := s.queue.Record()
	if err != nil {
		return err
	}
	defer e.Close()
	return e.Wait(ctx)
}
