package bench

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/stream/copy/measure"
)

// Beside measures what work costs a product that runs beside it, in pairs of windows of about that length, with it and without. work
// goes on until quit, calls moved for every part that is done, and leaves nothing under way when it returns; it is called anew for
// each window, by one goroutine at a time. The loss has no path or direction.
func Beside(
	ctx context.Context, p Product, pairs int, window time.Duration, work func(ctx context.Context, quit *atomic.Bool, moved func(bytes int64)) error,
) (Loss, error) {
	st := &stage{product: p, n: 1, now: time.Now}
	if err := st.gauge(ctx, window); err != nil {
		return Loss{}, err
	}
	l, _, err := st.loss(ctx, &traffic{work: work}, pairs)
	return l, err
}

// loss measures pairs of windows, with and without traffic. The order within a pair alternates, so that what drifts favors
// neither. It returns the product's rates alone, too.
func (st *stage) loss(ctx context.Context, t *traffic, pairs int) (Loss, []float64, error) {
	with := make([]bool, 0, 2*pairs)
	for pair := range pairs {
		with = append(with, pair%2 == 1, pair%2 == 0)
	}
	windows, err := st.run(ctx, t, with)
	if err != nil {
		return Loss{}, nil, err
	}
	var alone, busy, loss []float64
	var moved int64
	var moving time.Duration
	ops := st.product.Operations() * float64(st.n)
	for i := 0; i+1 < len(windows); i += 2 {
		off, on := windows[i], windows[i+1]
		if with[i] {
			off, on = on, off
		}
		moved += on.moved
		moving += on.took
		alone = append(alone, ops/off.took.Seconds()/1e12)
		busy = append(busy, ops/on.took.Seconds()/1e12)
		loss = append(loss, 1-off.took.Seconds()/on.took.Seconds())
	}
	in := meanInterval(loss)
	return Loss{
		AloneTFLOPS: measure.Median(alone), BesideTFLOPS: measure.Median(busy),
		Loss: in.mean, Low: in.low, High: in.high, GBps: rate(moved, moving),
	}, alone, nil
}
