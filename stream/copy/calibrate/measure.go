package calibrate

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/measure"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

const (
	// maxCount and maxBytes bound a measured batch: beyond them, time grows linearly with pieces
	// and bytes. fewBytes suffices for a kernel with few thread blocks, which copies one chunk at a
	// time.
	maxCount = 16 << 10
	maxBytes = 64 << 20
	fewBytes = 16 << 20

	// brief is the duration below which a batch is measured briefRepeats times in a row, after a
	// warm-up.
	brief        = 50 * time.Microsecond
	briefRepeats = 2

	// backToBack is the number of batches that are submitted at once to measure their marginal
	// cost. They have leadBytes, in copies of leadSize, so that the device and not the submitting
	// goroutine limits the rate.
	backToBack = 4
	leadBytes  = 4 << 20
	leadSize   = 64 << 10

	// longest is the ratio of the budget to the longest expected time of a batch.
	longest = 400
	// leastPoint is a time that a batch may always take, even if the budget is small.
	leastPoint = time.Millisecond
)

// errOtherPath is returned if a stream that was forced onto a path used another one.
var errOtherPath = errors.New("the batch took another path")

// timed copies b and returns its duration in nanoseconds, as measured by the stream.
func timed(ctx context.Context, s opened, b *mem.Batch) (float64, error) {
	done, err := copied(ctx, measure.Job{By: s.stream, Batch: b})
	if err != nil {
		return 0, err
	}
	if c := done[0]; c.Path != s.path {
		return 0, fmt.Errorf("%w: %s in place of %s (%s)", errOtherPath, c.Path, s.path, c.Reason)
	}
	return nanos(done[0].Started, done[0].Finished), nil
}

// copied submits all jobs before it waits for the first.
func copied(ctx context.Context, jobs ...measure.Job) ([]stream.Completion, error) {
	tickets, _, err := measure.Copy(ctx, nil, jobs)
	if err != nil {
		return nil, err
	}
	done := make([]stream.Completion, len(tickets))
	for i, t := range tickets {
		done[i] = t.Completion()
	}
	return done, nil
}

func nanos(from, to time.Time) float64 { return float64(max(1, to.Sub(from).Nanoseconds())) }

// point identifies a measurement: batches of count copies of size bytes.
type point struct {
	dir   plan.Direction
	side  plan.Side
	size  int64
	count int64
}

// series holds the measurements of a point by one stream.
type series struct {
	point
	by    opened
	times []float64
	adds  []float64 // marginal times
}

// measure measures every point with every stream, and repeats that until the budget is used up. The
// streams alternate, so that disturbances affect all paths equally. A batch that would take too
// long is left out, and so are those with more copies.
func (c *calibration) measure(ctx context.Context) ([]*series, error) {
	long := float64(max(leastPoint, c.o.Budget/longest))
	all, err := c.first(ctx, long)
	for err == nil && c.left() > 0 {
		for _, s := range all {
			if err = c.visit(ctx, s); err != nil || c.left() <= 0 {
				break
			}
			c.progress("measuring again")
		}
	}
	return all, err
}

// first measures every point once. It records paths that do not work, and leaves them out.
func (c *calibration) first(ctx context.Context, long float64) ([]*series, error) {
	type kind struct {
		point
		by *variant
	}
	var (
		all     []*series
		last    = make(map[kind]float64) // time of the batch with fewer copies
		missing = make(map[stream.Path]bool)
		fewer   int64
	)
	for _, count := range c.o.Counts {
		for p, by := range c.points(count) {
			k := kind{p, by.variant}
			k.count = fewer
			before, ok := last[k]
			if missing[by.path] || fewer > 0 && (!ok || before*float64(count)/float64(fewer) > long) {
				continue
			}
			c.progress(by.String())
			s := &series{point: p, by: by}
			err := c.visit(ctx, s)
			if errors.Is(err, errdefs.ErrNotSupported) || errors.Is(err, errOtherPath) {
				missing[by.path] = true
				c.lack(by.variant, err)
				continue
			}
			if err != nil {
				return nil, err
			}
			all = append(all, s)
			k.count = count
			last[k] = slices.Min(s.times)
		}
		fewer = count
	}
	return slices.DeleteFunc(all, func(s *series) bool { return missing[s.by.path] }), nil
}

// points yields every measured batch of count copies with each stream that measures it. The order
// of the streams rotates.
func (c *calibration) points(count int64) iter.Seq2[point, opened] {
	return func(yield func(point, opened) bool) {
		round := 0
		for _, dir := range []plan.Direction{plan.H2D, plan.D2H, plan.D2D} {
			for side := range plan.Scattered + 1 {
				for _, size := range c.sizes {
					if count > c.most(size) {
						continue
					}
					round++
					for i := range measure.Order(round, len(c.streams)) {
						by := c.streams[i]
						if !slices.Contains(by.ways, dir) || !slices.Contains(by.sides, side) || count > 1 && count*size > by.most {
							continue
						}
						if !yield(point{dir, side, size, count}, by) {
							return
						}
					}
				}
			}
		}
	}
}

// visit measures s once more, or several times if its batches are short.
func (c *calibration) visit(ctx context.Context, s *series) error {
	once := func() (float64, error) {
		return timed(ctx, s.by, c.batch(s.by, s.dir, s.side, s.size, int(s.count)))
	}
	repeats := 1
	if len(s.times) == 0 || s.times[0] < float64(brief) {
		t, err := once()
		if err != nil {
			return fmt.Errorf("measure %s: %w", s.by, err)
		}
		repeats = briefRepeats
		if t >= float64(brief) {
			s.times, repeats = append(s.times, t), 0
		}
	}
	for range repeats {
		t, err := once()
		if err != nil {
			return fmt.Errorf("measure %s: %w", s.by, err)
		}
		s.times = append(s.times, t)
	}
	if s.size != leadSize || s.count*s.size != leadBytes {
		return nil
	}
	add, err := c.marginal(ctx, s)
	if err != nil {
		return fmt.Errorf("measure %s, one batch after another: %w", s.by, err)
	}
	s.adds = append(s.adds, add)
	return nil
}

// marginal submits several batches before it waits for the first, and returns the additional time
// of each batch after the first.
func (c *calibration) marginal(ctx context.Context, s *series) (float64, error) {
	var jobs [backToBack]measure.Job
	for i := range jobs {
		jobs[i] = measure.Job{By: s.by.stream, Batch: c.batch(s.by, s.dir, s.side, s.size, int(s.count))}
	}
	done, err := copied(ctx, jobs[:]...)
	if err != nil {
		return 0, err
	}
	all := nanos(done[0].Started, done[backToBack-1].Finished)
	return max(1, (all-measure.LowMedian(s.times))/(backToBack-1)), nil
}

// fitted returns the measurements of s as a point for plan.Model.Fit.
func (s *series) fitted() plan.Point {
	p := plan.Point{Count: int(s.count), Size: s.size, Nanos: measure.LowMedian(s.times), Spread: spread(s.times)}
	if len(s.adds) > 0 {
		p.Marginal = measure.LowMedian(s.adds)
	}
	return p
}

// spread returns half of the interquartile range of v, relative to the median.
func spread(v []float64) float64 {
	sorted := slices.Sorted(slices.Values(v))
	return (sorted[len(sorted)*3/4] - sorted[len(sorted)/4]) / 2 / measure.LowMedian(v)
}
