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
}

// CopyBatch enqueues the copies in one call, each reading its source in the queue's order.
func (b batcher) CopyBatch(dst, src []mem.Extent) error {
	if err := b.q.usable(); err != nil {
		return fmt.Errorf("copy batch: %w", err)
	}
	if err := b.a.set(dst, src); err != nil {
		return fmt.Errorf("copy batch: %w", err)
	}
	n := len(b.a.dst)
	if n == 0 {
		return nil
	}
	d := b.q.dev
	if err := d.enter(); err != nil {
		return fmt.Errorf("copy batch: %w", err)
	}
	defer d.leave()
	if r := d.api.MemcpyBatchAsync(b.a.dst, b.a.src, b.a.bytes, b.q.stream); r != cuda.Success {
		return fmt.Errorf("copy batch: %w", d.fail(r, "cuMemcpyBatchAsync", "copies=%d", n))
	}
	return nil
}

// set takes the addresses over, without those of empty copies, which the driver refuses.
func (a *batchArrays) set(dst, src []mem.Extent) error {
	if len(dst) != len(src) {
		return fmt.Errorf("%d sources for %d destinations: %w", len(src), len(dst), errdefs.ErrInvalid)
	}
	a.dst, a.src, a.bytes = a.dst[:0], a.src[:0], a.bytes[:0]
	for i := range dst {
		if err := checkCopy(dst[i], src[i]); err != nil {
			return fmt.Errorf("copy %d: %w", i, err)
		}
		if dst[i].Len == 0 {
			continue
		}
		a.dst = append(a.dst, cuda.DevicePtr(dst[i].Dev()))
		a.src = append(a.src, cuda.DevicePtr(src[i].Dev()))
		a.bytes = append(a.bytes, uint64(dst[i].Len))
	}
	return nil
}
