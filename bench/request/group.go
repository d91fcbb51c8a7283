package request

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream/copy/measure"
	"github.com/kvlane/kvlane/tier/cache"
)

const (
	minRounds = 5
	maxReps   = 1000
	// In a round a contender has one repetition, or as many as fit into roundTime.
	roundTime = 3 * time.Millisecond
	mostReps  = 16
)

// entrant is a contender in a group: a set of requests that are repeatedly made concurrently.
type entrant struct {
	place   Place
	rig     *rig
	lanes   []*lane
	samples samples
}

// group measures all contenders of one request size and number of requests in interleaved rounds,
// with large copies between the rounds.
type group struct {
	rig              *rig
	blocks, requests int
	entrants         []*entrant
	large            map[Work][]float64
	leftOut          []string
}

func (g *group) name() string {
	return fmt.Sprintf("%s, %d x %d blocks", g.rig.geometry.Name, g.requests, g.blocks)
}

// openEntrants creates the contenders of the group.
func (g *group) openEntrants() {
	o := g.rig.o
	for _, w := range o.Work {
		hits := []Hits{""}
		switch w {
		case Load:
			hits = o.Hits
		case Both:
			hits = []Hits{g.rig.o.nearest()}
		case Dump:
		}
		for _, h := range hits {
			ways := []By{""}
			if w == Load && h != InCache && g.rig.engine.Direct().On {
				ways = []By{Direct, Pinned}
			}
			for _, f := range o.Forms {
				for _, by := range ways {
					g.add(Place{Work: w, Layerwise: f == Layers, Hits: h, By: by}, g.lanes)
				}
			}
			if len(ways) > 1 {
				g.add(Place{Work: w, Hits: h, By: Raw}, g.fileLane)
			}
		}
	}
	if g.rig.loads.pages != nil {
		g.add(Place{Work: Load}, g.bareLane)
	}
	if g.rig.dumps.pages != nil {
		g.add(Place{Work: Dump}, g.bareLane)
	}
}

func (g *group) add(p Place, lanes func(Place) []*lane) {
	p.Geometry, p.Blocks, p.Requests = g.rig.geometry.Name, g.blocks, g.requests
	e := &entrant{place: p, rig: g.rig, lanes: lanes(p)}
	if e.samples.init(e); e.readsFiles() {
		e.samples.path = "pread"
	}
	g.entrants = append(g.entrants, e)
}

// lanes returns a lane for each request of a place.
func (g *group) lanes(p Place) []*lane {
	var all []*lane
	for i := range g.requests {
		n := g.blocks * len(g.rig.caches)
		from, to := i*n, (i+1)*n
		if p.Work != Dump {
			set := &g.rig.loads
			l := &lane{rig: g.rig, work: Load, layers: p.Layerwise, by: p.By, keys: set.keys[from:to], refs: refsOf(set.keys[from:to], set.pages[from:to]), tier: cache.Name}
			if p.Hits != InCache {
				l.tier = g.rig.lower()
			}
			if p.Layerwise {
				l.arrived = make([]time.Duration, g.rig.geometry.Shards())
			}
			all = append(all, l)
		}
		if p.Work != Load {
			all = append(all, &lane{rig: g.rig, work: Dump, layers: p.Layerwise})
		}
	}
	return all
}

// bareLane returns the lane that copies the pages of all requests with a stream, without the store.
func (g *group) bareLane(p Place) []*lane {
	r, n := g.rig, g.requests*g.blocks
	paged := &mem.Paged{Dir: mem.ToPages}
	set := &r.loads
	if p.Work == Dump {
		paged.Dir, set = mem.ToSlots, &r.dumps
	}
	base := int64(0)
	for k, c := range r.caches {
		pairs := make([]mem.PageSlot, n)
		for i := range pairs {
			pairs[i] = mem.PageSlot{Page: set.pages[i*len(r.caches)+k], Slot: uint32(i)}
		}
		image := r.blocks[k].Layout.ImageBytes()
		paged.Groups = append(paged.Groups, mem.PageGroup{Planes: c.Planes(), Slots: mem.Slots{Region: r.host, Base: base, Stride: image}, Pairs: pairs})
		base += int64(r.most) * image
	}
	return []*lane{{rig: r, work: p.Work, raw: &mem.Batch{Paged: paged}}}
}

// measure measures until the deadline. Each contender is measured at least minRounds times unless
// the budget ends first.
func (g *group) measure(ctx context.Context, deadline time.Time, budget *bench.Budget) ([]Point, error) {
	g.openEntrants()
	g.large = make(map[Work][]float64)
	if err := g.verify(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", g.name(), err)
	}
	runtime.GC()
	for round := 0; len(g.entrants) > 0 && (round < minRounds || round < g.rig.o.rounds && g.rig.o.clock().Before(deadline) && !g.full()); round++ {
		for _, w := range g.rig.o.Work {
			gbps, err := g.rig.large.sample(ctx, w)
			if err != nil {
				return nil, err
			}
			g.large[w] = append(g.large[w], gbps)
		}
		for i := range g.entrants {
			// Rotate the order in each round.
			e := g.entrants[(i+round)%len(g.entrants)]
			if round < minRounds && budget.Over() {
				return nil, bench.ErrOverBudget
			}
			if err := e.measureRound(ctx, e.reps()); err != nil {
				return nil, fmt.Errorf("%s: %w", e.place, err)
			}
		}
	}
	return g.points(), nil
}

// verify makes the requests of every contender once and compares the bytes. These requests are not
// counted. It excludes contenders that the machine does not support.
func (g *group) verify(ctx context.Context) error {
	var all []*entrant
	for _, e := range g.entrants {
		err := e.verify(ctx)
		switch {
		case errors.Is(err, errdefs.ErrNotSupported):
			g.leftOut = append(g.leftOut, fmt.Sprintf("%s: %v", e.place, err))
			continue
		case err != nil:
			return fmt.Errorf("%s: %w", e.place, err)
		}
		e.samples.clear()
		all = append(all, e)
	}
	g.entrants = all
	return nil
}

func (g *group) full() bool {
	return !slices.ContainsFunc(g.entrants, func(e *entrant) bool { return len(e.samples.walls) < maxReps })
}

func (e *entrant) isBare() bool { return e.lanes[0].raw != nil }

func (e *entrant) readsFiles() bool { return e.place.By == Raw }

// reps returns the number of repetitions in the next round.
func (e *entrant) reps() int {
	n := int(float64(roundTime.Microseconds()) / max(measure.Quantile(slices.Clone(e.samples.walls), 0.5), 1))
	if e.place.Hits == InPageCache || e.place.Hits == OnDisk || n < 1 {
		return 1 // loaded blocks are in the cache afterwards
	}
	if e.place.Work != Load && !e.isBare() {
		n = min(n, e.rig.most/(e.place.Blocks*e.place.Requests)) // limit of the cache size
	}
	return max(min(n, mostReps, maxReps-len(e.samples.walls)), 1)
}

// measureRound makes the requests reps times and records the results.
func (e *entrant) measureRound(ctx context.Context, reps int) error {
	dumped, err := e.prepare(ctx, reps, false)
	if err != nil {
		return err
	}
	paths := e.rig.moved(e.place.Work)
	before := bench.UsageNow()
	for i := range reps {
		e.next(dumped, i)
		if err := e.make(ctx); err != nil {
			return err
		}
		e.samples.add(e.lanes)
	}
	used := before.Since()
	e.samples.cpu, e.samples.allocs = e.samples.cpu+used.CPU, e.samples.allocs+used.Allocs
	e.samples.path = mostMoved(paths, e.rig.moved(e.place.Work), e.samples.path)
	return e.rig.forget(ctx, dumped, allTiers)
}

// verify makes the requests once and compares every byte: loaded bytes at their destination, dumped
// bytes after loading them again.
func (e *entrant) verify(ctx context.Context) error {
	n := e.place.Blocks * e.place.Requests
	loads, dumps := e.place.Work != Dump && !e.isBare() && !e.readsFiles(), e.place.Work != Load && !e.isBare()
	if loads {
		if err := e.rig.poison(ctx, &e.rig.loads, n); err != nil {
			return err
		}
	}
	dumped, err := e.prepare(ctx, 1, true)
	if err != nil {
		return err
	}
	e.next(dumped, 0)
	if err := e.make(ctx); err != nil {
		return err
	}
	if loads {
		if err := e.rig.check(ctx, &e.rig.loads, n); err != nil {
			return err
		}
	}
	if dumps {
		if err := e.rig.loadBack(ctx, dumped); err != nil {
			return fmt.Errorf("load the dumped blocks: %w", err)
		}
	}
	return e.rig.forget(ctx, dumped, allTiers)
}

// loadBack loads blocks to their source pages and compares them.
func (r *rig) loadBack(ctx context.Context, refs []kvlane.Ref) error {
	n := len(refs) / len(r.caches)
	if err := r.poison(ctx, &r.dumps, n); err != nil {
		return err
	}
	l := lane{rig: r, work: Load, refs: refs}
	for i := range refs {
		l.keys = append(l.keys, refs[i].Key)
	}
	if err := l.run(ctx, time.Now()); err != nil {
		return err
	}
	return r.check(ctx, &r.dumps, n)
}

// prepare puts the blocks of loads into the tier of the place. It returns the references of new
// blocks for reps repetitions of dumps.
func (e *entrant) prepare(ctx context.Context, reps int, ask bool) (dumped []kvlane.Ref, err error) {
	r, n := e.rig, e.place.Blocks*e.place.Requests
	if e.isBare() {
		return nil, nil
	}
	if e.place.Work != Load {
		keys, err := r.newKeys(n * reps)
		if err != nil {
			return nil, err
		}
		all := n * len(r.caches)
		for i := range reps {
			dumped = append(dumped, refsOf(keys[i*all:(i+1)*all], r.dumps.pages[:all])...)
		}
	}
	if e.place.Work == Dump || r.dir == "" {
		return dumped, nil
	}
	keys, pages := r.loads.keys[:n*len(r.caches)], r.loads.pages[:n*len(r.caches)]
	if e.place.Hits == InCache {
		t, err := r.engine.Prefetch(ctx, keys)
		if err != nil {
			return nil, err
		}
		return dumped, t.Wait(ctx)
	}
	if err := r.forget(ctx, refsOf(keys, pages), 1); err != nil {
		return nil, err
	}
	if e.place.Hits == OnDisk {
		return dumped, dropFiles(r.dir, keys, ask)
	}
	return dumped, nil
}

// next assigns the blocks of repetition i to the lanes that dump.
func (e *entrant) next(dumped []kvlane.Ref, i int) {
	b := e.place.Blocks * len(e.rig.caches)
	from := i * b * e.place.Requests
	for _, l := range e.lanes {
		if l.work == Dump && l.raw == nil {
			l.refs = dumped[from : from+b]
			from += b
		}
	}
}

// make makes the requests concurrently.
func (e *entrant) make(ctx context.Context) error {
	if len(e.lanes) == 1 {
		return e.lanes[0].run(ctx, time.Now())
	}
	var wg sync.WaitGroup
	errs := make([]error, len(e.lanes))
	begin := time.Now()
	for i, l := range e.lanes {
		wg.Go(func() { errs[i] = l.run(ctx, begin) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
