package manager

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
)

// DefaultFilesMax is the default of Config.FilesMax.
const DefaultFilesMax = time.Second

// files asks the file tiers of all ranks with a bounded wait: the scheduler of an engine must not
// block on a file server. A lookup of files cannot be canceled. It goes on by itself, and no other
// starts before it ends.
type files struct {
	max     time.Duration
	clock   clockwork.Clock
	asking  chan struct{}             // has one element during a lookup
	since   atomic.Pointer[time.Time] // start of that lookup, or nil
	overdue atomic.Int64              // blocks of lookups that took too long
}

func newFiles(filesMax time.Duration, clock clockwork.Clock) *files {
	f := &files{max: filesMax, clock: clock, asking: make(chan struct{}, 1)}
	if f.max == 0 {
		f.max = DefaultFilesMax
	}
	return f
}

// lookUp calls ask, unless an earlier call is overdue.
func (f *files) lookUp(ctx context.Context, ask func(ctx context.Context) ([]bool, error)) ([]bool, error) {
	overdue := fmt.Errorf("look up files: no answer in %v: %w", f.max, errdefs.ErrBusy)
	if since := f.since.Load(); since != nil && f.clock.Since(*since) > f.max {
		return nil, overdue
	}
	timer := f.clock.NewTimer(f.max)
	defer timer.Stop()
	type answer struct {
		there []bool
		err   error
	}
	answers := make(chan answer, 1)
	for asking := f.asking; ; {
		select {
		case asking <- struct{}{}:
			asking = nil
			now := f.clock.Now()
			f.since.Store(&now)
			go func() {
				there, err := ask(ctx)
				f.since.Store(nil)
				<-f.asking
				answers <- answer{there, err}
			}()
		case a := <-answers:
			return a.there, a.err
		case <-timer.Chan():
			return nil, overdue
		case <-ctx.Done():
			return nil, fmt.Errorf("look up files: %w: %w", errdefs.ErrCanceled, context.Cause(ctx))
		}
	}
}
