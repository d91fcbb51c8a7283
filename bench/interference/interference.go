// Package interference measures how much a computation on the device slows down while other work
// runs.
//
// The computation runs in windows of equal size, in pairs: one window with the work and one
// without. The order alternates from pair to pair, so that a drift of the clock favors neither.
// Between windows the computation continues, because the clock of a GPU rises after a pause. The
// loss is one minus the ratio of the times of a pair, at the mean of all pairs, with the 95%
// confidence interval of Student's t.
package interference

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/stream/copy/measure"
)

// Product is a computation that keeps the multiprocessors of the device busy, on its own queue: a
// matrix product.
type Product interface {
	// Describe names the computation.
	Describe() string
	// Operations returns the number of floating-point operations of one product.
	Operations() float64
	// Enqueue enqueues n products.
	Enqueue(n int) error
	// Record returns an event that completes after everything enqueued so far.
	Record() (device.Event, error)
}

// Loss is the share of the product's rate that the work costs.
type Loss struct {
	AloneTFLOPS, BesideTFLOPS float64 // medians of the windows without and with the work
	Loss, Low, High           float64 // mean of the pairs, and its 95% confidence interval
	GBps                      float64 // rate of the work in its windows
}

// Measure runs work beside p in the given number of pairs of windows of about the given length.
// work runs until quit is set, calls moved after each completed part, and returns when nothing is
// in progress. Measure calls it once for each window with work, from one goroutine at a time.
func Measure(
	ctx context.Context, p Product, pairs int, length time.Duration, work func(ctx context.Context, quit *atomic.Bool, moved func(bytes int64)) error,
) (Loss, error) {
	return measurePairs(ctx, &stage{product: p, windowProducts: 1, now: time.Now}, pairs, length, &traffic{work: work})
}

func measurePairs(ctx context.Context, st *stage, pairs int, length time.Duration, t *traffic) (Loss, error) {
	if err := st.calibrate(ctx, length); err != nil {
		return Loss{}, err
	}
	with := make([]bool, 0, 2*pairs)
	for pair := range pairs {
		with = append(with, pair%2 == 1, pair%2 == 0)
	}
	windows, err := st.run(ctx, t, with)
	if err != nil {
		return Loss{}, err
	}
	var alone, concurrent, losses []float64
	var moved int64
	var moving time.Duration
	operations := st.product.Operations() * float64(st.windowProducts)
	for i := 0; i+1 < len(windows); i += 2 {
		off, on := windows[i], windows[i+1]
		if with[i] {
			off, on = on, off
		}
		moved += on.moved
		moving += on.took
		alone = append(alone, operations/off.took.Seconds()/1e12)
		concurrent = append(concurrent, operations/on.took.Seconds()/1e12)
		losses = append(losses, 1-off.took.Seconds()/on.took.Seconds())
	}
	in := meanInterval(losses)
	return Loss{
		AloneTFLOPS: measure.Median(alone), BesideTFLOPS: measure.Median(concurrent),
		Loss: in.mean, Low: in.low, High: in.high, GBps: float64(moved) / float64(max(moving.Nanoseconds(), 1)),
	}, nil
}
