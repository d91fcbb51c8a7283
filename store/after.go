package store

import (
	"context"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// pending says whether one of the dependencies has not resolved well yet.
func pending(after []mem.Dependency) bool {
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

// meet waits for dependencies, while the task holds no slots: as long as they take, and from Close on for LeaseMax.
func (t *task) meet(after []mem.Dependency) error {
	closing := t.s.closing
	var late <-chan time.Time
	for k := 0; k < len(after); {
		select {
		case <-after[k].Done():
			if err := after[k].Err(); err != nil {
				return unmet(after, k, err)
			}
			k++
		case <-t.ctx.Done():
			return unmet(after, k, context.Cause(t.ctx))
		case <-closing:
			closing = nil
			timer := t.s.clock.NewTimer(t.s.cfg.LeaseMax)
			defer timer.Stop()
			late = timer.Chan()
		case <-late:
			return unmet(after, k, fmt.Errorf("store has been closing for %v: %w", t.s.cfg.LeaseMax, errdefs.ErrClosed))
		}
	}
	return nil
}

// unmet says which of several dependencies was waited for in vain.
func unmet(after []mem.Dependency, k int, err error) error {
	return fmt.Errorf("wait for dependency %d of %d (%T): %w", k+1, len(after), after[k], err)
}
