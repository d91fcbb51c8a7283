package move

import (
	"context"
	"runtime"
	"time"

	"github.com/kvlane/kvlane/internal/sys/nap"
)

// awaitYield is the number of polls before await yields the processor. Most waits are shorter, and
// yielding wakes an idle processor.
const awaitYield = 256

// await polls ask until it reports completion or an error, or until ctx ends. due returns the time
// at which the next completion is expected, or zero if it is unknown. After nap.Spin, await calls
// ask with driver set, so that ask also queries the driver, which is slower.
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
