package copy

import (
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// demand is how many batches that a resident kernel could take have come one soon after another: soon enough for it to stay.
// Whether it pays to start one depends on how many follow. Safe for concurrent use; Submits that race may count one less.
type demand struct {
	last   atomic.Int64 // when the last one came, in nanoseconds since the stream's epoch; zero: none has
	streak atomic.Int64
}

// note counts a batch that comes at now, and returns how many came before it.
func (d *demand) note(now, idle time.Duration) int {
	if last := d.last.Swap(int64(now)); last == 0 || now-time.Duration(last) > idle {
		d.streak.Store(0)
		return 0
	}
	return int(d.streak.Add(1))
}

// streak counts a batch that comes at now, and returns how many came before it, each soon enough for a kernel to stay.
func (r *resident) streak(now time.Duration) int { return r.demand.note(now, r.o.Idle) }

// resting reports whether no kernel runs that would take the next entry. It takes Stream.mu: a stream that is not closing
// keeps the memory that this looks at.
func (r *resident) resting() bool {
	if !plan.Paths(r.s.prepared.Load()).Has(stream.PathResident) {
		return true
	}
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	return r.s.closing || r.workers[0].gone()
}
