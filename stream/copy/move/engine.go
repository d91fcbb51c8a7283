package move

import "github.com/kvlane/kvlane/mem"

// Engine is the path copy-engine: one copy per run.
type Engine struct {
	copier copier
	// dst and src hold the runs of one step, so that Step does not allocate.
	dst, src [batchRuns]mem.Extent
}

// NewEngine returns the path. Every queue supports it.
func NewEngine(env *Env) *Engine { return &Engine{copier: newCopier(env.Queue)} }

// Supports implements Mover.
func (e *Engine) Supports(*Batch) (ok, sums bool) { return true, false }

// Fits implements Mover. Copies without a BatchCopier need the most calls, and the event needs one
// more.
func (e *Engine) Fits(_ *Batch, f InFlight) bool { return f.admits(singleRuns + 1) }

// Step issues up to the maximum number of runs of a step.
func (e *Engine) Step(b *Batch, st *Step) (done bool, err error) {
	n := 0
	for n < e.copier.runs() && st.Bytes < b.limit() {
		dst, src, ok := b.At.Run(b.limit() - st.Bytes)
		if !ok {
			break
		}
		e.dst[n], e.src[n] = dst, src
		st.Bytes += dst.Len
		n++
	}
	st.Calls = e.copier.calls(n)
	return b.At.Over(), e.copier.copy(e.dst[:n], e.src[:n])
}
