package request

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/stream/copy/measure"
)

// Run measures. It opens an engine a geometry and closes it again. It fails with ErrCorrupt if wrong bytes arrived, and with the
// context's cause if ctx ends.
func Run(ctx context.Context, open Opener, o Options) (*Report, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("benchmark of requests: %w", err)
	}
	r := &run{open: open, o: &o, large: make(map[Work][]float64), rep: &Report{
		Kind: Kind, Format: Format, Points: []Point{},
		Setup: Setup{
			Geometries: o.Geometries, Blocks: o.Blocks, Requests: o.Requests, Bytes: o.Bytes, LargeBytes: o.LargeBytes,
			BudgetSeconds: o.Budget.Seconds(), Seed: o.Seed, Still: o.Still,
		},
	}}
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
	open        Opener
	o           *Options
	rep         *Report
	large       map[Work][]float64
	done, total int
	left        int // groups to come, which share what is left of the budget
	spent       time.Duration
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

func (r *run) all(ctx context.Context) error {
	var all []Geometry
	for _, name := range r.o.Geometries {
		g, err := GeometryByName(name)
		if err != nil {
			return err
		}
		groups, leftOut := r.o.sizes(&g)
		all = append(all, g)
		r.left += len(groups)
		r.rep.LeftOut = append(r.rep.LeftOut, leftOut...)
		r.total += len(groups)
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
	rig, err := newRig(ctx, r.open, r.o, g, most)
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
		begin := time.Now()
		points, err := group.measure(ctx, begin.Add((r.o.Budget-r.spent)/time.Duration(r.left)))
		if err != nil {
			return err
		}
		r.spent, r.left = r.spent+time.Since(begin), r.left-1
		r.rep.Points = append(r.rep.Points, points...)
		r.rep.LeftOut = append(r.rep.LeftOut, group.leftOut...)
		for w, v := range group.large {
			r.large[w] = append(r.large[w], v...)
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

// note adds notes, each once.
func (r *run) note(notes []string) {
	for _, n := range notes {
		if len(r.rep.Notes) == 0 || r.rep.Notes[len(r.rep.Notes)-1] != n {
			r.rep.Notes = append(r.rep.Notes, n)
		}
	}
}
