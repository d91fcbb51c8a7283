package move

import (
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream/copy/describe"
)

// Engine is copy-engine: a copy for each run.
type Engine struct {
	copier copier
	// dst and src hold the runs of one step, so that issuing allocates nothing.
	dst, src [batchRuns]mem.Extent
}

// NewEngine makes the path. Every queue has it.
func NewEngine(env *Env) *Engine { return &Engine{copier: newCopier(env.Queue)} }

// Takes implements Mover.
func (e *Engine) Takes(*Batch) (ok, sums bool) { return true, false }

// Room implements Mover: most calls are those of single copies, and an event.
func (e *Engine) Room(_ *Batch, f Flight) bool { return f.admits(singleRuns + 1) }

// Step issues as many runs as one step may have. Between devices batched calls were never tried: there it makes single copies.
func (e *Engine) Step(b *Batch, st *Step) (done bool, err error) {
	c, n := e.copier, 0
	if b.Ways&describe.Peer != 0 {
		c.batch = nil
	}
	for n < c.runs() && st.Bytes < b.limit() {
		dst, src, ok := b.At.Run(b.limit() - st.Bytes)
		if !ok {
			break
		}
		e.dst[n], e.src[n] = dst, src
		st.Bytes += dst.Len
		n++
	}
	st.Calls = c.calls(n)
	return b.At.Over(), c.copy(e.dst[:n], e.src[:n])
}
