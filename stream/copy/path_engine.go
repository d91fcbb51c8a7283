package copy

import (
	"math"

	"github.com/kvlane/kvlane/device"
)

// engine is copy-engine: one Queue.Copy for each run.
type engine struct{ s *Stream }

func (e *engine) available() error      { return nil }
func (e *engine) takes(*survey) bool    { return true }
func (e *engine) calls() int            { return engineStep + 1 }
func (e *engine) room(*op) (span, bool) { return span{}, true }

// step issues up to engineStep runs.
func (e *engine) step(o *op, _ span, it *item) (done bool, err error) {
	for it.calls < engineStep && it.bytes < o.chunk() {
		dst, src, ok := o.at.run(o.chunk() - it.bytes)
		if !ok {
			break
		}
		it.calls++
		it.bytes += dst.Len
		if err := e.s.queue.Copy(dst, src); err != nil {
			return false, err
		}
	}
	return o.at.over(), nil
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
