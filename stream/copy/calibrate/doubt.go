package calibrate

import (
	"cmp"
	"context"
	"slices"

	"github.com/kvlane/kvlane/stream/copy/measure"
)

const (
	// doubted is how much longer than its neighbours say a batch must have taken for it to be measured again: something may
	// have held it up. What really bends there is measured again for nothing, a few times.
	doubted = 1.08
	// again is how many times.
	again = 2
)

// doubt measures again what sticks out. Most batches are measured once, as time is short, and one that was held up would have
// the planner shun a path for ever at just that size and count.
func (c *calibration) doubt(ctx context.Context, all []*series) error {
	for range again {
		for _, s := range outliers(all) {
			c.progress("measuring what sticks out again")
			if err := c.visit(ctx, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// outliers returns the series that took much longer than those of the same copies, fewer and more of them, say: a cost a batch
// and a cost a copy lie on a line.
func outliers(all []*series) (found []*series) {
	sorted := slices.SortedFunc(slices.Values(all), func(a, b *series) int {
		return cmp.Or(cmp.Compare(a.by.path, b.by.path), cmp.Compare(a.by.ctas, b.by.ctas), cmp.Compare(a.dir, b.dir),
			cmp.Compare(a.side, b.side), cmp.Compare(a.size, b.size), cmp.Compare(a.count, b.count))
	})
	like := func(i, j int) bool {
		if j < 0 || j >= len(sorted) {
			return false
		}
		a, b := sorted[i], sorted[j]
		return a.by.variant == b.by.variant && a.dir == b.dir && a.side == b.side && a.size == b.size
	}
	for i, s := range sorted {
		n, expected := float64(s.count), 0.0
		switch fewer, more := like(i, i-1), like(i, i+1); {
		case fewer && more:
			a, b := sorted[i-1], sorted[i+1]
			frac := (n - float64(a.count)) / float64(b.count-a.count)
			expected = measure.LowMedian(a.times) + frac*(measure.LowMedian(b.times)-measure.LowMedian(a.times))
		case fewer:
			a := sorted[i-1]
			expected = measure.LowMedian(a.times) * n / float64(a.count)
		case more:
			expected = measure.LowMedian(sorted[i+1].times)
		default:
			continue
		}
		if measure.LowMedian(s.times) > doubted*expected {
			found = append(found, s)
		}
	}
	return found
}
