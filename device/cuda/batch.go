package cuda

import (
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/cuda"
	"github.com/kvlane/kvlane/mem"
)

// batcher makes a queue a device.BatchCopier.
type batcher struct {
	q *queue
	a *batchArrays
}

// batchArrays is what the driver reads during a call; it is kept, so that a batch allocates nothing.
type batchArrays struct {
	dst, src []cuda.DevicePtr
	bytes    []uint64
	other    []bool // a copy touches another region than the one before it, or another registration of one
	rows     cuda.Memcpy2D
}

const (
	// leastRows is how many copies at equal distances are worth a call of their own, which takes 4 to 6 us: as one of a batch each takes about 1.
	leastRows = 16
	// mostPitch is how far apart rows may lie: CU_DEVICE_ATTRIBUTE_MAX_PITCH is this on all GPUs.
	mostPitch = 1<<31 - 1
	// mostCopies is how many copies a call gets: the device copies while the driver looks at the next.
	mostCopies = 256
)

// CopyBatch enqueues the copies, each reading its source in the queue's order: rows at equal distances in one call, as a copy
// engine moves those many times faster than one by one, and so many of the others in one.
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
	if err := d.enter(); err != nil {
		return fmt.Errorf("copy batch: %w", err)
	}
	defer d.leave()
	from := 0 // of the copies that are not enqueued
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

// each enqueues copies one by one, in one call.
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

// rowsAt returns how many copies from i on, within one region on either side, are as long as that, and as far apart as the first two, and sets
// rows to them.
func (a *batchArrays) rowsAt(i int) int {
	width := a.bytes[i]
	if i+1 == len(a.dst) || a.bytes[i+1] != width || a.other[i+1] {
		return 1
	}
	// What lies in front of the one before is at a distance of more than any pitch.
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

// set takes the addresses over, without those of empty copies, which the driver refuses.
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

// sides are the two sides of a copy: a registration each.
type sides struct {
	dst, src             *mem.Region
	dstNumber, srcNumber int64
}
