package copy

import (
	"math"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// engine is copy-engine: a copy for each run, many in one call where the driver has such calls.
type engine struct {
	s       *Stream
	batcher device.BatchCopier // the queue, if it can; else nil
	// dst and src hold the runs of one step, so that issuing allocates nothing.
	dst, src [batchStep]mem.Extent
}

func (e *engine) available() error {
	e.batcher = batcher(e.s.queue)
	return nil
}

func (e *engine) takes(*survey) bool    { return true }
func (e *engine) calls() int            { return engineStep + 1 } // the most: of single copies
func (e *engine) room(*op) (span, bool) { return span{}, true }

// step issues as many runs as one step may have. Between devices batched calls were never tried: there it makes single copies.
func (e *engine) step(o *op, _ span, it *item) (done bool, err error) {
	batcher, n := e.batcher, 0
	if o.stats.ways&wayPeer != 0 {
		batcher = nil
	}
	for n < runStep(batcher) && it.bytes < o.chunk() {
		dst, src, ok := o.at.run(o.chunk() - it.bytes)
		if !ok {
			break
		}
		e.dst[n], e.src[n] = dst, src
		it.bytes += dst.Len
		n++
	}
	it.calls = runCalls(batcher, n)
	return o.at.over(), copyRuns(e.s.queue, batcher, e.dst[:n], e.src[:n])
}

// chunk is the most that one step may carry.
func (o *op) chunk() int64 {
	if o.choice.ChunkBytes > 0 {
		return o.choice.ChunkBytes
	}
	return math.MaxInt64
}

// batcher returns q's ability to copy many extents in a call, or nil.
func batcher(q device.Queue) device.BatchCopier {
	b, _ := q.(device.BatchCopier)
	return b
}

// runStep is how many runs one step may have of a queue with the ability b, or nil.
func runStep(b device.BatchCopier) int {
	if b != nil {
		return batchStep
	}
	return engineStep
}

// runCalls is what copyRuns of n runs counts for.
func runCalls(b device.BatchCopier, n int) int {
	if b != nil && n > 1 {
		return batchCalls
	}
	return min(n, engineStep)
}

// copyRuns copies runs on q: several in one call of b, which is q or nil, a single one as a plain copy.
func copyRuns(q device.Queue, b device.BatchCopier, dst, src []mem.Extent) error {
	if b != nil && len(dst) > 1 {
		return b.CopyBatch(dst, src)
	}
	for i := range dst {
		if err := q.Copy(dst[i], src[i]); err != nil {
			return err
		}
	}
	return nil
}
