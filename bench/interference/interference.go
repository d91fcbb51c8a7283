// Package interference measures how much other work slows down a computation on the device.
//
// The computation runs in pairs of windows of equal size: one with the work and one without. The
// order alternates from pair to pair to compensate for a drift of the GPU's clock rate. The
// computation also runs between the windows, because a GPU raises its clock rate after a pause. The
// loss of a pair is one minus the ratio of the two times. The result is the mean of all pairs with
// its 95% confidence interval (Student's t).
package interference

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/stream/copy/measure"
)

// Product is a computation that keeps the multiprocessors of the device busy: a matrix product on
// its own queue.
type Product interface {
	// Describe names the computation.
	Describe() string
	// Operations returns the number of floating-point operations of one product.
	Operations() float64
	// Enqueue enqueues n products.
	Enqueue(n int) error
	// Record returns an event that completes after all products enqueued so far.
	Record() (device.Event, error)
}

// Loss is the fraction of the product's rate that is lost because of the work.
type Loss struct {
	AloneTFLOPS, BesideTFLOPS float64 // medians of the windows without and with the work
	Loss, Low, High           float64 // mean over the pairs of windows, and its 95% confidence interval
	GBps                      float64 // rate of the work
}

// Measure runs work at the same time as p, in the given number of pairs of windows of approximately
// the given length. work must run until quit is set, call moved after each completed part, and
// return when nothing is in progress. It is called once for each window with work, by one goroutine
// at a time.
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
