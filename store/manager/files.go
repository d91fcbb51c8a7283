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

// files looks up blocks in the file tiers of all ranks, and bounds the wait, because the scheduler
// of an engine must not block on a file server. A lookup of files cannot be canceled. After the
// wait it continues in the background, and no other lookup starts before it ends.
type files struct {
	max     time.Duration
	clock   clockwork.Clock
	asking  chan struct{}             // has an element during a lookup
	since   atomic.Pointer[time.Time] // start of the running lookup, or nil
	overdue atomic.Int64              // blocks of lookups that exceeded max
}

func newFiles(filesMax time.Duration, clock clockwork.Clock) *files {
	f := &files{max: filesMax, clock: clock, asking: make(chan struct{}, 1)}
	if f.max == 0 {
		f.max = DefaultFilesMax
	}
	return f
}

// lookUp calls ask. It returns ErrBusy if an earlier call has exceeded max and is still running.
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
