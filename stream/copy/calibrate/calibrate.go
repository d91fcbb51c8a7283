package calibrate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/measure"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// The sources of profiles.
const (
	SourceMeasured  = "measured"
	SourceSimulated = "simulated"
)

// Result is the result of a calibration.
type Result struct {
	Profile plan.Profile
	// Missing lists the paths that the device does not support, with the reasons.
	Missing []Missing
	// Loaded describes a sign that other work began to use the GPU or the link during the
	// calibration. It is empty if there was none, and always for a simulated device, whose rates
	// depend on the load of the machine.
	Loaded string
	// Bytes is the size of the device memory, and of the pinned memory, over which blocks were
	// scattered.
	Bytes int64
	// Took is the duration of the calibration, including waits for an idle device.
	Took time.Duration
}

// Missing is a path that was not measured.
type Missing struct {
	Path   stream.Path
	Reason string
}

// Storable reports whether the profile describes the machine: it was measured on a real device
// without other work.
func (r *Result) Storable() bool { return r.Loaded == "" && r.Profile.Source == SourceMeasured }

// Run measures the paths of dev. While it runs it needs o.Bytes of device memory and as much pinned
// memory. If other work uses the device for longer than o.Wait, the error wraps ErrBusy. The end of
// ctx stops the run. Run returns an error if the device fails, or if no path works on it.
//
// If a stream does not close, its memory is not freed, because it may still be in use. The error
// then describes the memory.
func Run(ctx context.Context, dev device.Device, open Opener, o Options) (_ *Result, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.setDefaults()
	defer func() {
		if err != nil {
			err = fmt.Errorf("calibrate device %d: %w", dev.Info().Index, err)
		}
	}()
	c := &calibration{o: &o, begun: o.Clock.Now(), simulated: dev.Info().Driver == "sim"}
	if c.rig, err = newRig(dev, &o); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if err := c.run(ctx, open); err != nil {
		return nil, err
	}
	c.result.Bytes, c.result.Took = c.gpu.Len(), o.Clock.Since(c.begun)
	return &c.result, nil
}

type calibration struct {
	*rig
	o         *Options
	begun     time.Time // start of the calibration
	start     time.Time // start of the measurements
	simulated bool
	summed    uint64 // prevents the compiler from removing the sums
	result    Result
}

func (c *calibration) run(ctx context.Context, open Opener) error {
	for _, v := range variants(c.o.NIC) {
		var err error
		if c.o.NIC != nil && v.path == c.o.NIC.Path {
			err = c.Register(c.o.NIC.Memory, c.gpu, c.host)
		}
		var by opened
		if err == nil {
			by, err = c.openStream(open, v)
		}
		if errors.Is(err, errdefs.ErrNotSupported) {
			c.lack(v, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("measure %s: %w", v, err)
		}
		c.streams = append(c.streams, by)
	}
	before, err := c.idle(ctx)
	if err != nil {
		return err
	}
	c.start = c.o.Clock.Now()
	duplex, err := c.duplex(ctx, open)
	if err != nil {
		return err
	}
	all, err := c.measure(ctx)
	if err != nil {
		return err
	}
	after, err := c.takeSample(ctx)
	if err != nil {
		return err
	}
	p := &c.result.Profile
	*p = plan.Profile{Key: c.o.Key, Source: SourceMeasured, Made: c.begun.UTC().Round(0), Sizes: c.sizes, Counts: c.o.Counts}
	if c.simulated {
		p.Source = SourceSimulated
	} else {
		c.result.Loaded = changed(before, after)
	}
	for dir := range before.large {
		p.GBps[dir] = max(measure.LowMedian(before.large[dir]), measure.LowMedian(after.large[dir]))
	}
	p.SumGBps = c.sumGBps()
	if err := c.fit(all, duplex); err != nil {
		return err
	}
	p.Fill(plan.Default())
	if err := p.Validate(); err != nil {
		return fmt.Errorf("the measured times are not a valid profile: %w", err)
	}
	return nil
}

// fit adds a model to the profile for each direction and side of a measured variant.
func (c *calibration) fit(all []*series, duplex map[duplexID]float64) error {
	p := &c.result.Profile
	for _, by := range c.streams {
		for _, dir := range by.ways {
			for _, side := range by.sides {
				var points []plan.Point
				for _, s := range all {
					if s.by.variant == by.variant && s.dir == dir && s.side == side {
						points = append(points, s.fitted())
					}
				}
				if len(points) == 0 {
					continue
				}
				m := plan.Model{Path: by.path, CTAs: by.ctas, Dir: dir, Side: side}
				if err := m.Fit(p, points); err != nil {
					return err
				}
				m.Duplex = duplex[duplexID{by.path, dir}]
				p.Models = append(p.Models, m)
			}
		}
	}
	if len(p.Models) == 0 {
		return fmt.Errorf("no path works: %w", errdefs.ErrNotSupported)
	}
	return nil
}

// lack records that v could not be measured, once per path, because variants with fewer thread
// blocks have the same problem.
func (c *calibration) lack(v *variant, why error) {
	for _, m := range c.result.Missing {
		if m.Path == v.path {
			return
		}
	}
	c.result.Missing = append(c.result.Missing, Missing{v.path, why.Error()})
}

// left returns the remaining part of the budget.
func (c *calibration) left() time.Duration { return c.o.Budget - c.o.Clock.Since(c.start) }

// progress reports the used share of the budget.
func (c *calibration) progress(what string) {
	if c.o.Progress != nil {
		const parts = 100
		done := parts * c.o.Clock.Since(c.start) / max(c.o.Budget, 1)
		c.o.Progress(int(min(done, parts-1)), parts, what)
	}
}
