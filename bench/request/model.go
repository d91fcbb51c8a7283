package request

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/stream/copy/measure"
)

// Model is work that stands in for a model's: a Product whose size can be chosen, on a stream that an engine can adopt.
type Model interface {
	Product
	// Handle is the native handle of its stream.
	Handle() uintptr
	// Resize makes a product one of about so many operations, or as many as it can have. It waits for nothing that is enqueued.
	Resize(operations float64) error
}

const (
	// A layer is within tolerance of the time asked for, or what came nearest in so many tries.
	tolerance = 0.03
	fitTries  = 16
	// modelWarmup is how long work runs before it is timed: its first run loads kernels, and a GPU's clock takes that long to settle.
	modelWarmup = 300 * time.Millisecond
	// sampleTime is about how long products run that are timed together, mostSampled of them at most.
	sampleTime, mostSampled = 10 * time.Millisecond, 64
	// A layer has a few products, as the time of one is not to be had in small steps; and no more than mostParts, since a driver that
	// blocks because a stream is full may hold up those who end what the stream waits for.
	fewParts, mostParts = 4, 12
)

// model computes behind loads: its stream waits on the device for a layer, then works on that, and so on.
type model struct {
	work   Model
	stream *kvlane.HostStream
	shards int
	layer  layer
}

// layer is the work that takes about as long as a layer is to take.
type layer struct {
	asked, took time.Duration
	operations  float64 // of a product
	parts       int     // products of a layer
}

func (l *layer) off() float64 { return math.Abs(l.took.Seconds()/l.asked.Seconds() - 1) }

// follow enqueues a wait for each layer of the load and the work behind it, and waits until the last work is done.
func (m *model) follow(ctx context.Context, task *kvlane.LoadTask) error {
	return m.compute(ctx, func(k int) error { return m.stream.WaitShard(task, k) })
}

// alone enqueues the work of all layers, and waits until it is done.
func (m *model) alone(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	begin := time.Now()
	err := m.compute(ctx, func(int) error { return nil })
	return time.Since(begin), err
}

// compute waits until the last work is done, also where enqueueing failed after some.
func (m *model) compute(ctx context.Context, before func(shard int) error) error {
	var err error
	for k := 0; k < m.shards && err == nil; k++ {
		if err = before(k); err == nil {
			err = m.work.Enqueue(m.layer.parts)
		}
	}
	if err != nil {
		return fmt.Errorf("enqueue a model's work: %w", err)
	}
	if err := m.finish(ctx); err != nil {
		return fmt.Errorf("wait for a model's work: %w", err)
	}
	return nil
}

func (m *model) finish(ctx context.Context) error {
	e, err := m.work.Record()
	if err != nil {
		return err
	}
	defer e.Close()
	return e.Wait(ctx)
}

// time returns how long a product takes among n of them.
func (m *model) time(ctx context.Context, n int) (time.Duration, error) {
	begin := time.Now()
	if err := m.work.Enqueue(n); err != nil {
		return 0, err
	}
	err := m.finish(ctx)
	return max(time.Since(begin)/time.Duration(n), 1), err
}

// product returns the median time of a product on the idle device, the launches counted in.
func (m *model) product(ctx context.Context) (time.Duration, error) {
	one, err := m.time(ctx, 1) // which may load a kernel
	if err == nil {
		one, err = m.time(ctx, 1)
	}
	if err != nil {
		return 0, err
	}
	n := max(1, min(int(sampleTime/one), mostSampled))
	var v []float64
	for range minRounds {
		took, err := m.time(ctx, n)
		if err != nil {
			return 0, err
		}
		v = append(v, float64(took))
	}
	return time.Duration(measure.Quantile(v, 0.5)), nil
}

// warm runs the work for a while.
func (m *model) warm(ctx context.Context) error {
	for begin := time.Now(); time.Since(begin) < modelWarmup; {
		if _, err := m.time(ctx, fewParts); err != nil {
			return err
		}
	}
	return nil
}

// fit finds the work of a layer: products of a size of which a few take as long as was asked.
func (m *model) fit(ctx context.Context, asked time.Duration) (layer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := m.warm(ctx); err != nil {
		return layer{}, err
	}
	took, err := m.product(ctx)
	if err != nil {
		return layer{}, err
	}
	best := layer{asked: asked, took: math.MaxInt64}
	for try := range fitTries {
		// Another number of parts is another size to try: times go in steps with the size.
		parts := fewParts + try%(mostParts-fewParts+1)
		rate := m.work.Operations() / took.Seconds()
		if err := m.work.Resize(rate * asked.Seconds() / float64(parts)); err != nil {
			return layer{}, err
		}
		if took, err = m.product(ctx); err != nil {
			return layer{}, err
		}
		l := layer{asked: asked, operations: m.work.Operations()}
		l.parts = min(max(int(math.Round(asked.Seconds()/took.Seconds())), 1), mostParts)
		if l.took = time.Duration(l.parts) * took; l.off() < best.off() {
			best = l
		}
		if best.off() <= tolerance {
			break
		}
	}
	return best, nil
}

// models measures loads by layers, one at a time, with a model behind them, of every request size.
func (r *run) models(ctx context.Context, rig *rig, blocks []int) (err error) {
	work, err := r.o.OpenModel(ctx, rig.engine.Device())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, work.Close()) }()
	m := &model{work: work, shards: rig.geometry.Shards()}
	if m.stream, err = rig.engine.AdoptStream(work.Handle()); err != nil {
		return err
	}
	for _, asked := range r.o.ModelLayers {
		if err := r.size(ctx, m, asked); err != nil {
			return fmt.Errorf("find work of %v: %w", asked, err)
		}
		for _, n := range blocks {
			g := &group{rig: rig, blocks: n, requests: 1}
			var p ModelPoint
			err := r.timed(fmt.Sprintf("%s beside a model's layers of %s", g.name(), layerText(asked)), func(deadline time.Time) (err error) {
				p, err = g.model(ctx, m, deadline)
				return err
			})
			if err != nil {
				return fmt.Errorf("%s: %w", g.name(), err)
			}
			if p.Reps == 0 { // it was left out
				continue
			}
			r.rep.Models = append(r.rep.Models, p)
		}
	}
	return nil
}

// size makes the model's layers take so long. What was found for one geometry holds for the next.
func (r *run) size(ctx context.Context, m *model, asked time.Duration) (err error) {
	i := slices.IndexFunc(r.layers, func(l layer) bool { return l.asked == asked })
	if i < 0 {
		l, err := m.fit(ctx, asked)
		if err != nil {
			return err
		}
		i, r.layers = len(r.layers), append(r.layers, l)
		if l.off() > tolerance {
			r.rep.Notes = append(r.rep.Notes, fmt.Sprintf("a model's layers of %s take %s here: nothing nearer was found",
				layerText(asked), layerText(l.took.Round(time.Microsecond))))
		}
	}
	m.layer = r.layers[i]
	if err := m.work.Resize(m.layer.operations); err != nil {
		return err
	}
	// Once the stream waits for a load, a kernel that is loaded for the first time may hold up that load.
	_, err = m.alone(ctx)
	return err
}

// model measures the load alone, the work alone, and both, by turns.
func (g *group) model(ctx context.Context, m *model, deadline time.Time) (ModelPoint, error) {
	place := Place{Work: Load, Layerwise: true, Hits: InCache}
	g.add(place, g.lanes)
	g.add(place, func(p Place) []*lane {
		lanes := g.lanes(p)
		lanes[0].model, lanes[0].arrived = m, nil
		return lanes
	})
	if err := g.verify(ctx); err != nil {
		return ModelPoint{}, err
	}
	runtime.GC()
	load, both := g.entrants[0].lanes[0], g.entrants[1].lanes[0]
	var loads, works, totals []float64
	for round := 0; round < minRounds || g.rig.o.clock().Before(deadline) && round < g.rig.o.rounds; round++ {
		for i := range 3 {
			var err error
			switch (i + round) % 3 {
			case 0:
				err = load.run(ctx, time.Now())
				loads = append(loads, micros(load.free))
			case 1:
				var took time.Duration
				took, err = m.alone(ctx)
				works = append(works, micros(took))
			case 2:
				err = both.run(ctx, time.Now())
				totals = append(totals, micros(both.computed))
			}
			if err != nil {
				return ModelPoint{}, err
			}
		}
	}
	return g.modelPoint(m, loads, works, totals), nil
}

func (g *group) modelPoint(m *model, loads, works, totals []float64) ModelPoint {
	quantile := measure.Quantile
	p := ModelPoint{
		Place: g.entrants[1].place, Layers: m.shards, AskedMicros: micros(m.layer.asked), LayerMicros: micros(m.layer.took),
		Layer: fmt.Sprintf("%d %s", m.layer.parts, m.work.Describe()),
		Bytes: int64(g.blocks) * g.rig.geometry.BlockBytes(), Reps: len(totals),
		P50Micros: quantile(totals, 0.5), P99Micros: quantile(totals, 0.99), LoadMicros: quantile(loads, 0.5), WorkMicros: quantile(works, 0.5),
	}
	rate := func(q float64) float64 { return bench.GBps(p.Bytes, time.Duration(1e3*quantile(totals, q))) }
	p.GBps, p.LowGBps, p.HighGBps = rate(0.5), rate(0.75), rate(0.25)
	p.IdealMicros = max(p.LoadMicros, p.WorkMicros) + p.WorkMicros/float64(m.shards)
	p.ExcessPercent = 100 * (p.P50Micros/max(p.IdealMicros, 1e-3) - 1)
	return p
}
