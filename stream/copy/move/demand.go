package move

import (
	"sync/atomic"
	"time"
)

// demand is how many batches that a resident kernel could take have come one soon after another: soon enough for it to stay.
// Whether it pays to start one depends on how many follow, and on whether one is there. Times are nanoseconds by
// Env.Now. Safe for concurrent use; Submits that race may count one less.
type demand struct {
	last   atomic.Int64 // when the last one came; zero: none has
	streak atomic.Int64
	taken  atomic.Int64 // when the kernel was given one last; zero: never
	leaves atomic.Int64 // when the kernel's lease ends
}

// note counts a batch that comes at now, and returns how many came before it.
func (d *demand) note(now, idle time.Duration) int {
	if last := d.last.Swap(int64(now)); last == 0 || now-time.Duration(last) > idle {
		d.streak.Store(0)
		return 0
	}
	return int(d.streak.Add(1))
}

// Streak counts a batch that comes at now, and returns how many came before it, each soon enough for a kernel to stay.
func (r *Resident) Streak(now time.Duration) int { return r.demand.note(now, r.o.Idle) }

// Resting reports whether a batch that comes at now would have to start the kernel. It goes by when the kernel was started and
// given work last: to look would take longer than choosing may, and what is wrong for once costs little.
func (r *Resident) Resting(now time.Duration) bool {
	taken := r.demand.taken.Load()
	return taken == 0 || now > time.Duration(taken)+r.o.Idle || now > time.Duration(r.demand.leaves.Load())
}
