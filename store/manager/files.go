package manager

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store/admission"
	"github.com/kvlane/kvlane/tier"
)

// DefaultFilesMax is the default of Config.FilesMax.
const DefaultFilesMax = time.Second

// below looks up blocks in a tier below the pools of all ranks, and bounds the wait, because the
// scheduler of an engine must not block on a file server. A lookup of files cannot be canceled.
// After the wait it continues in the background, and no other lookup of the tier starts before it
// ends.
type below struct {
	name    string
	state   State // of the tier's blocks
	max     time.Duration
	clock   clockwork.Clock
	asking  chan struct{}             // has an element during a lookup
	since   atomic.Pointer[time.Time] // start of the running lookup, or nil
	overdue atomic.Int64              // blocks of lookups that exceeded max
}

func newBelow(t tier.Tier, most time.Duration, clock clockwork.Clock) *below {
	f := &below{name: t.Name(), state: InFiles, max: cmp.Or(most, DefaultFilesMax), clock: clock, asking: make(chan struct{}, 1)}
	if admission.SourceOf(f.name) == admission.Remote {
		f.state = InRemote
	}
	return f
}

// lookUp calls ask, for a number of blocks. If ask does not return within max, or an earlier call
// has exceeded max and is still running, it counts the blocks and returns ErrBusy.
func (f *below) lookUp(ctx context.Context, blocks int, ask func(ctx context.Context) ([][]bool, error)) ([][]bool, error) {
	overdue := fmt.Errorf("look up tier %s: no answer in %v: %w", f.name, f.max, errdefs.ErrBusy)
	if since := f.since.Load(); since != nil && f.clock.Since(*since) > f.max {
		f.overdue.Add(int64(blocks))
		return nil, overdue
	}
	timer := f.clock.NewTimer(f.max)
	defer timer.Stop()
	type answer struct {
		there [][]bool
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
			f.overdue.Add(int64(blocks))
			return nil, overdue
		case <-ctx.Done():
			return nil, fmt.Errorf("look up tier %s: %w: %w", f.name, errdefs.ErrCanceled, context.Cause(ctx))
		}
	}
}
