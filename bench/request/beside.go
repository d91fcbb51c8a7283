package request

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvlane/kvlane/bench/interference"
)

// besideTime returns the expected duration of the measurement with a product: the windows, and a
// third more for the time between them.
func (o *Options) besideTime() time.Duration {
	if o.OpenProduct == nil {
		return 0
	}
	places := len(o.Geometries) * len(o.Work) * len(o.Forms)
	return time.Duration(places*2*o.Pairs) * o.Window * 4 / 3
}

// measureProductCost measures how much loads and dumps slow down the product.
func (r *run) measureProductCost(ctx context.Context, rig *rig) (err error) {
	p, err := r.o.OpenProduct(ctx, rig.engine.Device())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if r.rep.ProductCost == nil {
		r.rep.ProductCost = &ProductCost{What: p.Describe(), Pairs: r.o.Pairs}
	}
	g := &group{rig: rig, blocks: r.o.BesideBlocks, requests: r.o.BesideRequests}
	g.openEntrants()
	for _, e := range g.entrants {
		if e.isBare() || e.place.Work == Load && e.place.Hits != InCache {
			continue
		}
		l, err := interference.Measure(ctx, p, r.o.Pairs, r.o.Window, e.work)
		if err != nil {
			return fmt.Errorf("%s: %w", e.place, err)
		}
		r.rep.ProductCost.Losses = append(r.rep.ProductCost.Losses, Loss{
			Place: e.place, GBps: l.GBps, AloneTFLOPS: l.AloneTFLOPS, BesideTFLOPS: l.BesideTFLOPS, Loss: l.Loss, Low: l.Low, High: l.High,
		})
	}
	return nil
}

// work makes requests in each lane until quit is set.
func (e *entrant) work(ctx context.Context, quit *atomic.Bool, moved func(bytes int64)) error {
	bytes := int64(e.place.Blocks) * e.rig.geometry.BlockBytes()
	// The loads find their blocks in the cache, also if dumps run too (Both).
	if e.place.Work != Dump {
		one := *e
		one.place.Work = Load
		if _, err := one.prepare(ctx, 1, false); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	dumps := 0
	for _, l := range e.lanes {
		pages := e.rig.dumps.pages
		if l.work == Dump {
			n := e.place.Blocks * len(e.rig.caches)
			pages = pages[dumps : dumps+n]
			dumps += n
		}
		g.Go(func() error {
			for !quit.Load() {
				if l.work == Dump {
					keys, err := e.rig.newKeys(e.place.Blocks)
					if err != nil {
						return err
					}
					l.refs = refsOf(keys, pages)
				}
				if err := l.run(ctx, time.Now()); err != nil {
					return err
				}
				moved(bytes)
				if l.work == Dump {
					if err := e.rig.forget(ctx, l.refs, allTiers); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	return g.Wait()
}
