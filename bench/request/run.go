package request

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/stream/copy/measure"
)

// Run measures. It opens and closes an engine for each geometry. It returns ErrCorrupt if bytes are
// wrong, ErrInvalid if the budget ended before a group was measured, and the cause of ctx if ctx
// ends. In the last case it also returns a report of the measured groups, marked as incomplete.
func Run(ctx context.Context, o Options) (*Report, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("benchmark of requests: %w", err)
	}
	loads, dumps := o.Engine.Stream.Goals()
	if o.Began.IsZero() {
		o.Began = o.clock()
	}
	r := &run{o: &o, large: make(map[Work][]float64), rep: &Report{
		Kind: Kind, Format: Format, Points: []Point{},
		Setup: Setup{
			Geometries: o.Geometries, Blocks: o.Blocks, Requests: o.Requests, Bytes: o.Bytes, LargeBytes: o.LargeBytes,
			BudgetSeconds: o.Budget.Seconds(), Seed: o.Seed, Still: o.still(),
			LoadPolicy: loads.String(), DumpPolicy: dumps.String(),
		},
	}}
	err := r.all(ctx)
	r.finish()
	return bench.Outcome(ctx, r.budget, r.rep, &r.rep.Incomplete, "benchmark of requests", err)
}

// run is the state of a run.
type run struct {
	o           *Options
	rep         *Report
	large       map[Work][]float64
	done, total int
	budget      *bench.Budget // the units are groups
	noticed     bool
}

// size is a number of blocks per request and a number of concurrent requests.
type size struct{ blocks, requests int }

// sizes returns the groups of a geometry, and texts about groups that exceed Options.Bytes.
func (o *Options) sizes(g *Geometry) (groups []size, leftOut []string) {
	for _, n := range o.Requests {
		for _, b := range o.Blocks {
			if bytes := int64(b) * int64(n) * g.BlockBytes(); bytes > o.Bytes {
				leftOut = append(leftOut, fmt.Sprintf("%s, %d x %d blocks: %s are more than the %s of all requests at a time",
					g.Name, n, b, bench.BytesText(bytes), bench.BytesText(o.Bytes)))
				continue
			}
			groups = append(groups, size{b, n})
		}
	}
	return groups, leftOut
}

func (r *run) all(ctx context.Context) (err error) {
	var all []Geometry
	units := make([]int, len(r.o.Geometries))
	for i, name := range r.o.Geometries {
		g, err := GeometryByName(name)
		if err != nil {
			return err
		}
		groups, leftOut := r.o.sizes(&g)
		all = append(all, g)
		units[i] = len(groups)
		r.rep.LeftOut = append(r.rep.LeftOut, leftOut...)
		r.total += units[i]
	}
	r.budget = bench.NewBudget(r.o.Budget, r.o.Began, r.o.clock, r.total)
	if err := r.budget.Reserve(r.o.besideTime()); err != nil {
		return err
	}
	if r.o.OpenProduct != nil {
		r.total += len(all)
	}
	for i := range all {
		r.budget.Part(units[i])
		if err := r.geometry(ctx, all[i]); err != nil {
			return fmt.Errorf("%s: %w", all[i].Name, err)
		}
	}
	return nil
}

// finish summarizes the run. It sorts the points in the order of the options.
func (r *run) finish() {
	c := &r.rep.Reference
	for w, to := range map[Work]*bench.Rate{Load: &c.ToDevice, Dump: &c.ToHost, Both: &c.Both} {
		v := r.large[w]
		*to = bench.Rate{GBps: measure.Quantile(v, 0.5), Low: measure.Quantile(v, 0.05), High: measure.Quantile(v, 0.95), Samples: len(v)}
	}
	slices.SortStableFunc(r.rep.Points, func(a, b Point) int {
		return cmp.Or(
			slices.Index(r.o.Geometries, a.Geometry)-slices.Index(r.o.Geometries, b.Geometry),
			slices.Index(r.o.Requests, a.Requests)-slices.Index(r.o.Requests, b.Requests),
			slices.Index(r.o.Blocks, a.Blocks)-slices.Index(r.o.Blocks, b.Blocks),
		)
	})
	r.rep.Machine.Finish()
}

func (r *run) step(what string) {
	if r.o.Progress != nil {
		r.o.Progress(r.done, r.total, what)
	}
	r.done++
}

// geometry measures all groups of one geometry.
func (r *run) geometry(ctx context.Context, g Geometry) (err error) {
	sizes, _ := r.o.sizes(&g)
	most := 0
	for _, s := range sizes {
		most = max(most, s.blocks*s.requests)
	}
	if r.o.OpenProduct != nil {
		most = max(most, r.o.BesideBlocks*r.o.BesideRequests)
	}
	rig, err := newRig(ctx, r.o, g, most)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rig.close()) }()
	if r.rep.Machine.Device == "" {
		r.rep.Machine = bench.NewFacts(rig.engine.Device().Info(), r.o.Began)
	}
	for _, i := range bench.Spread(len(sizes)) {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		group := &group{rig: rig, blocks: sizes[i].blocks, requests: sizes[i].requests}
		var points []Point
		err := r.timed(group.name(), func(deadline time.Time) (err error) {
			points, err = group.measure(ctx, deadline, r.budget)
			return err
		})
		if err != nil {
			return err
		}
		r.rep.Points = append(r.rep.Points, points...)
		r.rep.LeftOut = append(r.rep.LeftOut, group.leftOut...)
		for w, v := range group.large {
			r.large[w] = append(r.large[w], v...)
		}
	}
	if r.o.OpenProduct != nil {
		r.step(g.Name + " beside the product")
		if err := r.measureProductCost(ctx, rig); err != nil {
			return fmt.Errorf("beside a product: %w", err)
		}
	}
	r.note(rig.engine.Notes())
	return nil
}

// timed measures a group within its share of the remaining budget, or skips it. It returns an error
// if no group fits.
func (r *run) timed(what string, measure func(deadline time.Time) error) error {
	deadline, fits := r.budget.Begin(1)
	err := bench.ErrOverBudget
	if fits {
		r.step(what)
		err = measure(deadline)
	}
	r.budget.End(1, err == nil)
	if errors.Is(err, bench.ErrOverBudget) {
		if !r.budget.Measured() {
			return r.budget.TooShort()
		}
		r.rep.LeftOut = append(r.rep.LeftOut, fmt.Sprintf("%s: it did not fit the budget of %v", what, r.o.Budget))
		return nil
	}
	if text := r.budget.Notice("groups of points"); err == nil && !r.noticed && r.o.Notice != nil && text != "" {
		r.o.Notice(text)
		r.noticed = true
	}
	return err
}

// note adds notes. It skips a note that equals the previous one.
func (r *run) note(notes []string) {
	for _, n := range notes {
		if len(r.rep.Notes) == 0 || r.rep.Notes[len(r.rep.Notes)-1] != n {
			r.rep.Notes = append(r.rep.Notes, n)
		}
	}
}
