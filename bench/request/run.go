package request

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/stream/copy/measure"
)

// Run measures. It opens an engine a geometry and closes it again. It fails with ErrCorrupt if wrong bytes arrived, and with the
// context's cause if ctx ends.
func Run(ctx context.Context, o Options) (*Report, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("benchmark of requests: %w", err)
	}
	loads, dumps := o.Engine.Stream.Goals()
	r := &run{o: &o, large: make(map[Work][]float64), rep: &Report{
		Kind: Kind, Format: Format, Points: []Point{},
		Setup: Setup{
			Geometries: o.Geometries, Blocks: o.Blocks, Requests: o.Requests, Bytes: o.Bytes, LargeBytes: o.LargeBytes,
			BudgetSeconds: o.Budget.Seconds(), Seed: o.Seed, Still: o.still(),
			LoadPolicy: loads.String(), DumpPolicy: dumps.String(),
		},
	}}
	for _, d := range o.ModelLayers {
		r.rep.Setup.ModelLayersMicros = append(r.rep.Setup.ModelLayersMicros, micros(d))
	}
	if err := r.all(ctx); err != nil {
		if ctx.Err() != nil {
			err = errors.Join(context.Cause(ctx), err)
		}
		return nil, fmt.Errorf("benchmark of requests: %w", err)
	}
	return r.rep, nil
}

// run is a run in progress.
type run struct {
	o           *Options
	rep         *Report
	large       map[Work][]float64
	done, total int
	left        int // groups to come, a model's too, which share what is left of the budget
	spent       time.Duration
	layers      []layer // that a model's work has been found for
}

// size is how many blocks a request has, and how many requests there are at a time.
type size struct{ blocks, requests int }

// sizes returns the groups of a geometry, and what is left out for want of bytes.
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

// requestSizes returns how many blocks requests have, each once.
func requestSizes(groups []size) []int {
	var all []int
	for _, s := range groups {
		if !slices.Contains(all, s.blocks) {
			all = append(all, s.blocks)
		}
	}
	return all
}

func (r *run) all(ctx context.Context) error {
	var all []Geometry
	for _, name := range r.o.Geometries {
		g, err := GeometryByName(name)
		if err != nil {
			return err
		}
		groups, leftOut := r.o.sizes(&g)
		all = append(all, g)
		n := len(groups) + len(r.o.ModelLayers)*len(requestSizes(groups))
		r.left += n
		r.rep.LeftOut = append(r.rep.LeftOut, leftOut...)
		r.total += n
		if r.o.OpenProduct != nil {
			r.total++
		}
	}
	for i := range all {
		if err := r.geometry(ctx, all[i]); err != nil {
			return fmt.Errorf("%s: %w", all[i].Name, err)
		}
	}
	c := &r.rep.Reference
	for w, to := range map[Work]*bench.Rate{Load: &c.ToDevice, Dump: &c.ToHost, Both: &c.Both} {
		v := r.large[w]
		*to = bench.Rate{GBps: measure.Quantile(v, 0.5), Low: measure.Quantile(v, 0.05), High: measure.Quantile(v, 0.95), Samples: len(v)}
	}
	r.rep.Machine.Finish()
	return nil
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
		r.rep.Machine = bench.NewFacts(rig.engine.Device().Info())
	}
	for _, s := range sizes {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		group := &group{rig: rig, blocks: s.blocks, requests: s.requests}
		r.step(group.name())
		var points []Point
		err := r.timed(func(deadline time.Time) (err error) {
			points, err = group.measure(ctx, deadline)
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
	if len(r.o.ModelLayers) > 0 {
		if err := r.models(ctx, rig, requestSizes(sizes)); err != nil {
			return fmt.Errorf("beside a model: %w", err)
		}
	}
	if r.o.OpenProduct != nil {
		r.step(g.Name + " beside the product")
		if err := r.beside(ctx, rig); err != nil {
			return fmt.Errorf("beside a product: %w", err)
		}
	}
	r.note(rig.engine.Notes())
	return nil
}

// timed measures a group within its share of what is left of the budget.
func (r *run) timed(measure func(deadline time.Time) error) error {
	begin := time.Now()
	err := measure(begin.Add((r.o.Budget - r.spent) / time.Duration(r.left)))
	r.spent, r.left = r.spent+time.Since(begin), r.left-1
	return err
}

// note adds notes, each once.
func (r *run) note(notes []string) {
	for _, n := range notes {
		if len(r.rep.Notes) == 0 || r.rep.Notes[len(r.rep.Notes)-1] != n {
			r.rep.Notes = append(r.rep.Notes, n)
		}
	}
}
