package cuda

import (
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/cuda"
	"github.com/kvlane/kvlane/mem"
)

// batcher adds device.BatchCopier to a queue.
type batcher struct {
	q *queue
	a *batchArrays
}

// batchArrays holds the arrays that the driver reads during a call. They are reused, so that a
// batch allocates nothing.
type batchArrays struct {
	dst, src []cuda.DevicePtr
	bytes    []uint64
	// other[i] is set if copy i uses another region, or another registration of a region, than copy
	// i-1.
	other []bool
	rows  cuda.Memcpy2D
}

const (
	// leastRows is the minimum number of copies at equal distances for a separate call. That call
	// takes 4 to 6 us; in a batch each copy takes about 1 us.
	leastRows = 16
	// mostPitch is the largest distance between rows. CU_DEVICE_ATTRIBUTE_MAX_PITCH has this value
	// on all GPUs.
	mostPitch = 1<<31 - 1
	// mostCopies is the maximum number of copies in one call. The device copies them while the
	// driver processes the next call.
	mostCopies = 256
)

// CopyBatch enqueues the copies. Each reads its source in the queue's order. Rows at equal
// distances share a call, because a copy engine then moves them many times faster than one by one.
// Other copies share calls of up to mostCopies.
func (b batcher) CopyBatch(dst, src []mem.Extent) error {
	if err := b.q.usable(); err != nil {
		return fmt.Errorf("copy batch: %w", err)
	}
	if err := b.a.set(dst, src); err != nil {
		return fmt.Errorf("copy batch: %w", err)
	}
	if len(b.a.dst) == 0 {
		return nil
	}
	d := b.q.dev
	if err := d.pushContext(); err != nil {
		return fmt.Errorf("copy batch: %w", err)
	}
	defer d.popContext()
	from := 0 // first copy that is not enqueued
	for i := 0; i < len(b.a.dst); {
		n := b.a.rowsAt(i)
		if n < leastRows {
			if i += n; i-from >= mostCopies {
				if err := b.each(from, i); err != nil {
					return err
				}
				from = i
			}
			continue
		}
		if err := b.each(from, i); err != nil {
			return err
		}
		if r := d.api.Memcpy2DAsync(&b.a.rows, b.q.stream); r != cuda.Success {
			return fmt.Errorf("copy batch: %w", d.fail(r, "cuMemcpy2DAsync", "rows=%d of %d bytes", n, b.a.rows.WidthInBytes))
		}
		i += n
		from = i
	}
	return b.each(from, len(b.a.dst))
}

// each enqueues copies from to to-1 in one call.
func (b batcher) each(from, to int) error {
	if from == to {
		return nil
	}
	d := b.q.dev
	if r := d.api.MemcpyBatchAsync(b.a.dst[from:to], b.a.src[from:to], b.a.bytes[from:to], b.q.stream); r != cuda.Success {
		return fmt.Errorf("copy batch: %w", d.fail(r, "cuMemcpyBatchAsync", "copies=%d", to-from))
	}
	return nil
}

// rowsAt returns the number of copies from i on that form rows, and sets rows to them. Rows are
// within one region on either side, and have equal lengths and distances.
func (a *batchArrays) rowsAt(i int) int {
	width := a.bytes[i]
	if i+1 == len(a.dst) || a.bytes[i+1] != width || a.other[i+1] {
		return 1
	}
	// If a copy is before the previous one, the unsigned distance exceeds any pitch.
	to, from := uint64(a.dst[i+1]-a.dst[i]), uint64(a.src[i+1]-a.src[i])
	if to < width || from < width || to > mostPitch || from > mostPitch {
		return 1
	}
	n := 2
	for ; i+n < len(a.dst) && a.bytes[i+n] == width && !a.other[i+n] && uint64(a.dst[i+n]-a.dst[i+n-1]) == to && uint64(a.src[i+n]-a.src[i+n-1]) == from; n++ {
	}
	a.rows = cuda.Memcpy2D{
		SrcType: cuda.MemTypeUnified, Src: a.src[i], SrcPitch: from, DstType: cuda.MemTypeUnified, Dst: a.dst[i], DstPitch: to,
		WidthInBytes: width, Height: uint64(n),
	}
	return n
}

// set stores the addresses of the copies. It omits empty copies, which the driver refuses.
func (a *batchArrays) set(dst, src []mem.Extent) error {
	if len(dst) != len(src) {
		return fmt.Errorf("%d sources for %d destinations: %w", len(src), len(dst), errdefs.ErrInvalid)
	}
	a.dst, a.src, a.bytes, a.other = a.dst[:0], a.src[:0], a.bytes[:0], a.other[:0]
	var last sides
	for i := range dst {
		if err := checkCopy(dst[i], src[i]); err != nil {
			return fmt.Errorf("copy %d: %w", i, err)
		}
		for to, from := dst[i], src[i]; to.Len > 0; {
			n, toNumber, fromNumber := firstRegistration(to, from)
			a.dst = append(a.dst, cuda.DevicePtr(to.Dev()))
			a.src = append(a.src, cuda.DevicePtr(from.Dev()))
			a.bytes = append(a.bytes, uint64(n))
			now := sides{to.Region, from.Region, toNumber, fromNumber}
			a.other = append(a.other, now != last)
			last = now
			to, from = skip(to, n), skip(from, n)
		}
	}
	return nil
}

// sides are the destination and the source region of a copy, with the number of a registration in
// each.
type sides struct {
	dst, src             *mem.Region
	dstNumber, srcNumber int64
}
