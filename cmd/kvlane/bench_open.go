package main

import (
	"context"
	"fmt"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/profile"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// profile returns the profile for choosing paths, as an engine does: the stored profile of this
// GPU, or a new measurement. source describes the origin of the profile.
func (f *benchFlags) profile(ctx context.Context, dev device.Device) (p plan.Profile, source string, err error) {
	p, source = plan.Default(), "built-in figures"
	if dev.Info().Driver != string(kvlane.Sim) {
		c, err := profile.Calibrate(ctx, dev, profile.Options{Dir: f.profileDir})
		switch {
		case ctx.Err() != nil:
			return p, "", context.Cause(ctx)
		case err != nil:
			source = "built-in figures: " + err.Error()
		case !c.Stored:
			source = "built-in figures: measuring this GPU found it in use: " + c.Result.Loaded
		default:
			p, source = c.Profile, "this GPU's profile, measured "+c.Profile.Made.UTC().Format("2006-01-02 15:04 MST")
		}
	}
	return p, source, nil
}

// newPlanner returns a planner that does not use the paths of --without.
func (f *benchFlags) newPlanner(p plan.Profile, source string) (*plan.Planner, error) {
	budget, err := plan.NewBudget(plan.BudgetOptions{})
	if err != nil {
		return nil, err
	}
	planner, err := plan.New(p, plan.Options{Budget: budget, Without: plan.PathSet(f.without...)})
	if err != nil {
		return nil, fmt.Errorf("plan by %s: %w", source, err)
	}
	return planner, nil
}

// opener returns a function that opens the streams to measure. Streams that choose their paths
// share one planner, so that its predictions use the times of all of them.
func (f *benchFlags) opener(dev device.Device, planner *plan.Planner, nics *benchNICs) bench.Opener {
	return func(c bench.Contender) (stream.Stream, error) {
		if c.NIC() {
			return nics.openStream(c)
		}
		o := streamcopy.Options{Path: c.Path, Planner: planner, HighPriority: f.highPriority}
		if c.Path == stream.PathNone {
			var err error
			if o.Policy.Goal, err = plan.ParseGoal(string(c.Policy)); err != nil {
				return nil, err
			}
		}
		return streamcopy.Open(dev, o)
	}
}
