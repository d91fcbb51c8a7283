package cuda

import (
	"context"
	"runtime"
	"time"

	"github.com/kvlane/kvlane/internal/sys/nap"
)

// How a wait polls. Copies of a few blocks take 10 to 50 us, so for that long it asks without a pause, letting other
// goroutines run in between. Afterwards it sleeps for a part of the time waited so far, which bounds how late it can be
// in proportion, and at most maxNap, which costs about a hundredth of a core.
const (
	spin    = 50 * time.Microsecond
	napPart = 32
	maxNap  = 200 * time.Microsecond
)

// poller is what can be waited for. An interface and not a function, so that waiting allocates nothing.
type poller interface {
	poll() (done bool, err error)
}

// await polls p until it is done, fails, or ctx ends; then it returns the context's cause. What is done already is never
// reported as canceled.
func await(ctx context.Context, p poller) error {
	start := time.Now()
	for {
		done, err := p.poll()
		if done || err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		waited := time.Since(start)
		if waited < spin {
			runtime.Gosched()
			continue
		}
		nap.Sleep(min(waited/napPart, maxNap))
	}
}
