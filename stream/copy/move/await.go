package move

import (
	"context"
	"runtime"
	"time"

	"github.com/kvlane/kvlane/internal/sys/nap"
)

// awaitYield is how many polls await makes before others get a turn: most of what it waits for takes less, and to yield wakes an idle
// processor up.
const awaitYield = 256

// await asks until it is done or has failed, or until ctx ends. due says when something new is expected; zero: nobody knows. It asks
// with the driver's help, which takes a while, once that is likely to be needed.
func await(ctx context.Context, due func() time.Time, ask func(driver bool) (bool, error)) error {
	begun := time.Now()
	for polls := 1; ; polls++ {
		now, left := time.Now(), nap.Unexpected
		if at := due(); !at.IsZero() {
			left = at.Sub(now)
		}
		waited := now.Sub(begun)
		if done, err := ask(waited >= nap.Spin); done || err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if pause := nap.Pause(waited, left); pause > 0 {
			nap.Sleep(pause)
		} else if polls%awaitYield == 0 {
			runtime.Gosched()
		}
	}
}
