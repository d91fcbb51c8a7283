package copy

import (
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// batch is copy-engine-batch: many runs in one call of device.BatchCopier.
type batch struct {
	s       *Stream
	batcher device.BatchCopier
	// dst and src hold the runs of one call, so that calling allocates nothing.
	dst, src [batchStep]mem.Extent
}

func (b *batch) available() error {
	if b.batcher = batcher(b.s.queue); b.batcher == nil {
		return fmt.Errorf("its driver has no batched copies: %w", errdefs.ErrNotSupported)
	}
	return nil
}

func (b *batch) takes(*survey) bool    { return true }
func (b *batch) calls() int            { return batchCalls + 1 }
func (b *batch) room(*op) (span, bool) { return span{}, true }

// step issues up to batchStep runs in one call.
func (b *batch) step(o *op, _ span, it *item) (done bool, err error) {
	n := 0
	for n < batchStep && it.bytes < o.chunk() {
		dst, src, ok := o.at.run(o.chunk() - it.bytes)
		if !ok {
			break
		}
		b.dst[n], b.src[n] = dst, src
		it.bytes += dst.Len
		n++
	}
	it.calls = batchCalls
	return o.at.over(), b.batcher.CopyBatch(b.dst[:n], b.src[:n])
}
