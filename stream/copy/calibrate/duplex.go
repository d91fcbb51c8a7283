package calibrate

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/measure"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// Copies in both directions at once are measured with batches of duplexBytes in copies of
// duplexSize, with duplexRepeats repetitions after a warm-up. Engines copy pieces of
// duplexEngineSize, so that the bytes and not the CPU time of the calls determine the time.
const (
	duplexBytes      = 16 << 20
	duplexSize       = 64 << 10
	duplexEngineSize = 1 << 20
	duplexRepeats    = 3
)

// duplexID is a path and a direction.
type duplexID struct {
	path stream.Path
	dir  plan.Direction
}

// duplex measures, for each path that crosses the bus, the additional nanoseconds of a byte while
// as many bytes are copied in the opposite direction. The result is the mean of both directions,
// with the path's highest number of thread blocks. A path without a second stream is left out.
func (c *calibration) duplex(ctx context.Context, open Opener) (map[duplexID]float64, error) {
	widest := make(map[stream.Path]opened)
	for _, by := range c.streams {
		if w, ok := widest[by.path]; !ok || by.ctas > w.ctas {
			widest[by.path] = by
		}
	}
	all := make(map[duplexID]float64)
	for _, in := range c.streams {
		if widest[in.path].variant != in.variant {
			continue
		}
		out, err := c.openStream(open, in.variant)
		if errors.Is(err, errdefs.ErrNotSupported) || errors.Is(err, errdefs.ErrNoMemory) {
			c.lack(in.variant, fmt.Errorf("both directions: %w", err))
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("measure %s in both directions: %w", in, err)
		}
		c.progress(in.String() + ", both directions")
		// If a path does not copy as requested, its own measurement fails later.
		size := int64(duplexSize)
		if in.path == stream.PathCopyEngine {
			size = duplexEngineSize
		}
		size = min(size, c.sizes[len(c.sizes)-1])
		count := int(min(duplexBytes/size, in.most/size, c.most(size)))
		if err := c.oppose(ctx, in, out, size, max(count, 1), all); err != nil && !errors.Is(err, errOtherPath) {
			return nil, fmt.Errorf("measure %s in both directions: %w", in, err)
		}
	}
	return all, nil
}

// oppose copies to the device through in, and to the host through out: each alone, and both at
// once. It adds the additional time of a byte to all.
func (c *calibration) oppose(ctx context.Context, in, out opened, size int64, count int, all map[duplexID]float64) error {
	streams := [2]opened{plan.H2D: in, plan.D2H: out}
	side := in.sides[0]
	var alone, both [2][]float64
	for i := range duplexRepeats + 1 {
		for dir := range streams {
			t, err := timed(ctx, streams[dir], c.batch(streams[dir], plan.Direction(dir), side, size, count))
			if err != nil {
				return err
			}
			if i > 0 {
				alone[dir] = append(alone[dir], t)
			}
		}
		var jobs [2]measure.Job
		for dir, by := range streams {
			jobs[dir] = measure.Job{By: by.stream, Batch: c.batch(by, plan.Direction(dir), side, size, count)}
		}
		done, err := copied(ctx, jobs[:]...)
		if err != nil {
			return err
		}
		for dir := range done {
			if i > 0 {
				both[dir] = append(both[dir], nanos(done[dir].Started, done[dir].Finished))
			}
		}
	}
	// Use the mean of both directions. Some paths favour one direction of the bus, in which they
	// would appear best at the expense of the other.
	var longer float64
	for dir := range streams {
		longer += max(0, measure.LowMedian(both[dir])-measure.LowMedian(alone[dir])) / float64(len(streams))
	}
	for dir := range streams {
		all[duplexID{in.path, plan.Direction(dir)}] = longer / float64(size*int64(count))
	}
	return nil
}
