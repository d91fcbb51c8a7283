package soft

import (
	"testing"

	"github.com/kvlane/kvlane/rdma"
)

// Begin takes the step that starts the next request of v or flushes v, whether or not it is
// possible now. It reports whether the step had an effect.
func (p *Provider) Begin(tb testing.TB, v rdma.QP) bool {
	tb.Helper()
	q, ok := v.(*qp)
	if !ok {
		tb.Fatalf("the queue pair is a %T", v)
	}
	p.engine.steps.Lock()
	defer p.engine.steps.Unlock()
	return p.engine.begin(q)
}
