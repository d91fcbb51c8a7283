package task

import (
	"context"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// Pending reports whether a dependency has not resolved or has failed.
func Pending(after []mem.Dependency) bool {
	for _, d := range after {
		select {
		case <-d.Done():
			if d.Err() != nil {
				return true
			}
		default:
			return true
		}
	}
	return false
}

// WaitAll waits for dependencies. The task must hold no slots. The wait is unlimited until the
// scheduler closes, and lasts at most LeaseMax after that.
func (t *Task) WaitAll(after []mem.Dependency) error {
	closing := t.sched.Closing()
	var expired <-chan time.Time
	for k := 0; k < len(after); {
		select {
		case <-after[k].Done():
			if err := after[k].Err(); err != nil {
				return DependencyError(after, k, err)
			}
			k++
		case <-t.ctx.Done():
			return DependencyError(after, k, context.Cause(t.ctx))
		case <-closing:
			closing = nil
			timer := t.p.Clock.NewTimer(t.p.LeaseMax)
			defer timer.Stop()
			expired = timer.Chan()
		case <-expired:
			return DependencyError(after, k, fmt.Errorf("store has been closing for %v: %w", t.p.LeaseMax, errdefs.ErrClosed))
		}
	}
	return nil
}

// DependencyError wraps err with the number and the type of dependency k.
func DependencyError(after []mem.Dependency, k int, err error) error {
	return fmt.Errorf("wait for dependency %d of %d (%T): %w", k+1, len(after), after[k], err)
}
