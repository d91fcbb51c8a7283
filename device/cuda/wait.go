package cuda

import (
	"context"
	"runtime"
	"time"

	"github.com/kvlane/kvlane/internal/sys/nap"
)

// poller is an operation that can be awaited. It is an interface instead of a function, so that
// waiting allocates nothing.
type poller interface {
	poll() (done bool, err error)
}

// await polls p until it is done or fails, or until ctx ends and await returns the cause of ctx.
// due is the expected end, or zero. An operation that is already done is never reported as
// canceled.
func await(ctx context.Context, p poller, due time.Time) error {
	start := time.Now()
	for {
		done, err := p.poll()
		if done || err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		now, left := time.Now(), nap.Unexpected
		if !due.IsZero() {
			left = due.Sub(now)
		}
		if pause := nap.Pause(now.Sub(start), left); pause > 0 {
			nap.Sleep(pause)
		} else {
			runtime.Gosched()
		}
	}
}
