package calibrate

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/measure"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

const (
	// largeBytes is the size of a large copy. largeRepeats of them are made after a warm-up.
	largeBytes   = 64 << 20
	largeRepeats = 9
	smallRepeats = 15
	// steadyBy is the tolerated relative difference between measurements of the same large copy on
	// an idle device.
	steadyBy = 0.1
	// crowdedBy is the tolerated ratio of a kernel's time for one block to a copy engine's. It is
	// about two on an idle GPU; on a busy one a kernel may wait milliseconds for multiprocessors.
	crowdedBy = 8
	// lookAgain is the interval between samples of a device in use.
	lookAgain = 250 * time.Millisecond
	smallSize = 4 << 10
)

// sample describes the device's load: the rates of several large copies in each direction, in GB/s,
// and the times of one small copy by copy engine and by kernel, in nanoseconds. The kernel's time
// is zero if there is no kernel.
type sample struct {
	large          [2][]float64
	engine, kernel float64
}

// idle waits until no other work seems to use the device or its link, for at most Options.Wait.
func (c *calibration) idle(ctx context.Context) (sample, error) {
	end := c.begun.Add(c.o.Wait)
	for {
		s, err := c.takeSample(ctx)
		if err != nil {
			return s, err
		}
		why := s.loaded()
		if why == "" || c.simulated {
			return s, nil
		}
		if c.o.Clock.Now().Add(lookAgain).After(end) {
			return s, fmt.Errorf("another process uses it: %s: %w", why, errdefs.ErrBusy)
		}
		c.progress("waiting: " + why)
		select {
		case <-c.o.Clock.After(lookAgain):
		case <-ctx.Done():
			return s, fmt.Errorf("wait until no other process uses it (%s): %w", why, context.Cause(ctx))
		}
	}
}

// takeSample samples the load of the device.
func (c *calibration) takeSample(ctx context.Context) (s sample, err error) {
	for _, by := range c.streams {
		switch by.path {
		case stream.PathCopyEngine:
			if err = c.lookAtLink(ctx, by, &s); err == nil {
				s.engine, err = c.small(ctx, by)
			}
		case stream.PathKernel:
			if s.kernel == 0 {
				s.kernel, err = c.small(ctx, by)
			}
		default:
		}
		if err != nil {
			return s, fmt.Errorf("check whether the device is in use: %w", err)
		}
	}
	if s.engine == 0 {
		return s, fmt.Errorf("the reference, sequential copies by copy engine, could not be measured: %w", errdefs.ErrNotSupported)
	}
	return s, nil
}

func (c *calibration) lookAtLink(ctx context.Context, by opened, s *sample) error {
	size := min(c.gpu.Len()/2, largeBytes)
	for _, dir := range []plan.Direction{plan.H2D, plan.D2H} {
		b := c.single(dir, size)
		for i := range largeRepeats + 1 {
			t, err := timed(ctx, by, b)
			if err != nil {
				return err
			}
			if i > 0 {
				s.large[dir] = append(s.large[dir], float64(size)/t)
			}
		}
	}
	return nil
}

// small returns the median time of one small copy, in nanoseconds.
func (c *calibration) small(ctx context.Context, by opened) (float64, error) {
	b := c.single(plan.H2D, min(smallSize, c.gpu.Len()))
	var times []float64
	for range smallRepeats {
		t, err := timed(ctx, by, b)
		if err != nil {
			return 0, err
		}
		times = append(times, t)
	}
	return measure.LowMedian(times), nil
}

// loaded describes a sign that other work uses the device or the link, or returns "".
func (s *sample) loaded() string {
	for dir, rates := range s.large {
		sorted := slices.Sorted(slices.Values(rates))
		// Ignore the slowest copy, which may be due to any disturbance.
		if low, high := sorted[1], sorted[len(sorted)-1]; low < high*(1-2*steadyBy) {
			return fmt.Sprintf("one large copy %s varies from %.1f to %.1f GB/s", plan.Direction(dir), low, high)
		}
	}
	if s.kernel > crowdedBy*s.engine {
		return fmt.Sprintf("a kernel takes %.0f us for one block, a copy engine %.0f us", s.kernel/1e3, s.engine/1e3)
	}
	return ""
}

// changed describes how the device's load differs between two samples, or returns "".
func changed(before, after sample) string {
	for dir := range before.large {
		a, b := measure.LowMedian(before.large[dir]), measure.LowMedian(after.large[dir])
		if math.Abs(a/b-1) > steadyBy {
			return fmt.Sprintf("one large copy %s changed from %.1f GB/s to %.1f GB/s", plan.Direction(dir), a, b)
		}
	}
	return after.loaded()
}
