package plan

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
)

// The defaults of Options.
const (
	DefaultMargin   = 0.02
	DefaultHalfLife = 10 * time.Second
)

// Options configures a planner. The zero value selects the defaults.
type Options struct {
	Policy Policy
	// Margin is the fraction by which a path may be slower than the fastest and still be chosen
	// because it has fewer thread blocks. Zero: DefaultMargin; negative: none.
	Margin float64
	// HalfLife is the time for which an observation has its full weight. After that the weight
	// halves with each further HalfLife. Zero: DefaultHalfLife.
	HalfLife time.Duration
	// Without holds paths that are not chosen if another path can copy the batch. It serves to
	// measure the gain of these paths.
	Without Paths
	// Budget, if not nil, bounds thread blocks and chunks under policies that weigh interference.
	Budget *Budget
	// Clock measures the age of observations. Default: the system clock.
	Clock clockwork.Clock
}

// Validate returns an error for every field that is out of range.
func (o Options) Validate() error {
	errs := []error{o.Policy.Validate()}
	if !(o.Margin < 1) {
		errs = append(errs, fmt.Errorf("planner: margin %v: %w", o.Margin, errdefs.ErrInvalid))
	}
	if o.HalfLife < 0 {
		errs = append(errs, fmt.Errorf("planner: half-life %v is negative: %w", o.HalfLife, errdefs.ErrInvalid))
	}
	return errors.Join(errs...)
}

// Planner chooses paths for the batches of streams under one policy. It is safe for concurrent use,
// and no method blocks.
type Planner struct {
	*shared
	policy Policy
	budget *Budget
}

// shared is the common state of planners with different policies for the same device.
type shared struct {
	profile *Profile
	margin  float64
	without Paths
	table   [directions][]candidate
	learned learned
}

// New returns a planner for p, which must not change afterwards.
func New(p Profile, o Options) (*Planner, error) {
	if err := errors.Join(p.Validate(), o.Validate()); err != nil {
		return nil, fmt.Errorf("make planner: %w", err)
	}
	if o.Clock == nil {
		o.Clock = clockwork.NewRealClock()
	}
	if o.Margin == 0 {
		o.Margin = DefaultMargin
	}
	if o.HalfLife == 0 {
		o.HalfLife = DefaultHalfLife
	}
	s := &shared{profile: &p, margin: max(o.Margin, 0), without: o.Without}
	for d := range s.table {
		s.table[d] = p.candidates(Direction(d))
	}
	s.learned.init(o.Clock, o.HalfLife)
	return &Planner{shared: s, policy: o.Policy.withDefaults(), budget: o.Budget}, nil
}

// With returns a planner with another policy that shares p's profile, observations and budget.
func (p *Planner) With(policy Policy) (*Planner, error) {
	if err := policy.Validate(); err != nil {
		return nil, fmt.Errorf("make planner: %w", err)
	}
	return &Planner{shared: p.shared, policy: policy.withDefaults(), budget: p.budget}, nil
}

// Profile returns the profile that predictions are based on.
func (p *Planner) Profile() *Profile { return p.profile }

// Policy returns the planner's policy, with defaults filled in.
func (p *Planner) Policy() Policy { return p.policy }

// Predict returns the predicted time of r by path with ctas thread blocks, from its start or from
// the end of the work ahead of it. ok is false if there are no measurements.
func (p *Planner) Predict(r Request, path stream.Path, ctas int) (_ time.Duration, ok bool) {
	if r.Dir >= directions {
		return 0, false
	}
	list := p.table[r.Dir]
	now := p.learned.now()
	p.learned.mu.Lock()
	defer p.learned.mu.Unlock()
	class := p.learned.class(&r, now)
	var l load
	p.profile.load(&r, class.opposed, &l)
	var s scales
	p.learned.scales(class, PathSet(path), now, &s)
	for i := range list {
		if c := &list[i]; c.path == path && c.ctas == ctas {
			alone, opposite, lead := c.time(&l)
			t := behind((alone+opposite)*s[path], lead*s[path], r.aheadOf(path))
			return duration(t), true
		}
	}
	return 0, false
}

// aheadOf returns the time for which the work ahead of r continues after r has started by path.
func (r *Request) aheadOf(path stream.Path) time.Duration {
	if r.Alone.Has(path) {
		return 0
	}
	return r.Ahead
}

// behind returns the part of a batch's time that remains after the work ahead of it ends.
func behind(alone, lead float64, ahead time.Duration) float64 {
	return alone - min(lead, float64(ahead))
}

// duration converts nanoseconds to a duration of at most maxNanos.
func duration(ns float64) time.Duration { return time.Duration(min(ns, maxNanos)) }

// bounds are the limits of a choice, from policy and budget.
type bounds struct {
	goal   Goal
	weight float64 // weight of interference
	ctas   int
	chunk  int64
	// rate bounds background copies, in bytes per nanosecond. Zero means no bound.
	rate float64
	// ease is the rate that suffices while data are copied in the opposite direction: more thread
	// blocks cause interference. Zero means no bound.
	ease float64
}

// easeShare is the share of the link's rate, by direction, that suffices while data are copied in
// the opposite direction. Requests that wait in the GPU for a full link delay the opposite
// direction, writes to the host more than reads. On an H100, 4 KiB blocks scattered on both sides
// reach 55 to 69 GB/s in total with 16 thread blocks each way. With 4 and 1, which reach 48.6 and
// 38.4 alone, they reach 83.
var easeShare = [directions]float64{H2D: 0.75, D2H: 0.65}

func (p *Planner) bounds(r *Request, opposed bool) bounds {
	d, b := r.Dir, bounds{goal: p.policy.Goal, weight: weights[p.policy.Goal], ctas: cmp.Or(p.policy.MaxCTAs, maxCTAs)}
	if r.Awaited {
		b.weight = 0
	}
	if opposed && (b.goal == Throughput || b.goal == Balanced) {
		b.ease = easeShare[d] * p.profile.GBps[d]
	}
	if b.goal == Background {
		b.rate = p.policy.LinkShare * p.profile.GBps[d]
	}
	switch {
	case b.weight == 0:
	case p.budget != nil:
		lim := p.budget.Limits()
		b.ctas, b.chunk = min(b.ctas, lim.CTAs), lim.ChunkBytes
	default:
		b.chunk = DefaultMaxChunkBytes
	}
	return b
}

// costed is a candidate of a choice: its index in the table and its footprint, its cost, the
// interference included in the cost, and the predicted time.
type costed struct {
	at, taken                   int32
	cost, interference, predict float64
	// lone is the time without opposite traffic. For paths with thread blocks it is not corrected.
	lone float64
}

// Choose returns the choice for r among the paths in can. It does not allocate. For a request of no
// bytes it returns PathNone.
func (p *Planner) Choose(r Request, can Paths) Choice {
	if r.Bytes <= 0 || can == 0 || r.Dir >= directions {
		return Choice{Reason: ReasonNothing}
	}
	if left := can &^ p.without; left != 0 {
		can = left
	}
	l := &p.learned
	now := l.now()

	l.mu.Lock()
	defer l.mu.Unlock()
	class := l.class(&r, now)
	b := p.bounds(&r, class.opposed)
	choice := Choice{ChunkBytes: b.chunk, Pace: b.pace(r.Bytes), class: class}
	var (
		at  load
		s   scales
		buf [maxCandidates]costed
	)
	table := p.table[r.Dir]
	p.profile.load(&r, class.opposed, &at)
	l.scales(class, can, now, &s)
	list, fewest := p.cost(buf[:0], &r, &at, can, &b, &s)
	if len(list) == 0 {
		// No path was measured, so use any path.
		choice.Path, choice.Reason = stream.Path(bits.TrailingZeros32(uint32(can))), ReasonUnmeasured
		l.count(r.Dir, &choice)
		return choice
	}
	x, reason := p.pick(list, &r, &b)
	switch {
	case fewest:
		reason = ReasonFewest
	case len(list) == 1:
		reason = ReasonOnly
	}
	c := &table[x.at]
	choice.Path, choice.CTAs, choice.Reason = c.path, c.ctas, reason
	choice.Predicted, choice.scale = duration(x.predict), s[c.path]
	l.begins(r.Dir, now, now+r.Ahead+choice.Predicted)
	l.count(r.Dir, &choice)
	return choice
}

// count adds a choice to the statistics. The caller holds the mutex.
func (l *learned) count(d Direction, c *Choice) {
	if c.Path >= stream.PathCount {
		return
	}
	l.paths[d][c.Path].stats.Choices++
}

// cost appends every candidate that can copy r within the bounds. If the bound on thread blocks
// excludes all of them, it appends those with the fewest and sets fewest, so that every batch can
// be copied.
func (p *Planner) cost(list []costed, r *Request, at *load, can Paths, b *bounds, s *scales) (_ []costed, fewest bool) {
	table := p.table[r.Dir]
	limit := b.ctas
	for i := range table {
		c := &table[i]
		if !can.Has(c.path) || r.Summed && !c.widest && b.weight == 0 {
			continue
		}
		if c.taken > limit {
			// The table is sorted by footprint.
			if len(list) > 0 {
				break
			}
			limit, fewest = c.taken, true
		}
		lone, opposite, lead := c.time(at)
		scale := s[c.path]
		alone, lead, works := (lone+opposite)*scale, lead*scale, lone*scale
		// The correction of a path with thread blocks may come from a different number of them.
		if c.taken == 0 {
			lone *= scale
		}
		x := costed{at: int32(i), taken: int32(c.taken), lone: lone, predict: behind(alone, lead, r.aheadOf(c.path))}
		switch {
		case b.goal == Latency:
			x.cost = alone
		case b.goal == Background && c.taken > 0:
			// The correction includes waits for multiprocessors that other work occupies.
			// Background copies must not prefer a path because it waits less.
			x.cost, works = x.predict/scale, works/scale
		default:
			x.cost = x.predict
		}
		x.interference = b.weight * c.weightedCost(works, r.aheadOf(c.path))
		// Being faster than the pace is no advantage.
		x.cost = max(x.cost, float64(b.pace(r.Bytes))) + x.interference
		// In the background, the time in which a CPU computes sums does not matter.
		if r.Unsummed.Has(c.path) && p.profile.SumGBps > 0 && b.goal != Background {
			x.cost += float64(r.Bytes) / p.profile.SumGBps
		}
		list = append(list, x)
	}
	return list, fewest
}

// pick returns the chosen candidate and the reason.
func (p *Planner) pick(list []costed, r *Request, b *bounds) (*costed, string) {
	best, soonest := &list[0], &list[0]
	for i := range list {
		x := &list[i]
		if x.cost < best.cost {
			best = x
		}
		if x.cost-x.interference < soonest.cost-soonest.interference {
			soonest = x
		}
	}
	if b.ease > 0 {
		enough := float64(r.Bytes) / b.ease
		// A single thread block does not delay the opposite direction. Therefore a path without
		// thread blocks is no better than a staged one, which is faster.
		if x := leanestOf(list, 1, func(x *costed) bool { return x.lone <= enough }); x != nil {
			return x, ReasonOpposed
		}
	}
	limit := best.cost * (1 + p.margin)
	x := leanestOf(list, 0, func(x *costed) bool { return x.cost <= limit })
	switch {
	case x.cost-x.interference > (soonest.cost-soonest.interference)*(1+p.margin):
		return x, ReasonInterference
	case x.taken < best.taken:
		return x, ReasonLeanest
	}
	return x, ReasonFastest
}

// leanestOf returns the candidate with the fewest thread blocks among those that ok accepts, and
// the cheapest of several. Numbers up to few count as equal. It returns nil if ok accepts none.
func leanestOf(list []costed, few int32, ok func(*costed) bool) *costed {
	var least *costed
	for i := range list {
		x := &list[i]
		if !ok(x) {
			continue
		}
		if taken := max(x.taken, few); least == nil || taken < max(least.taken, few) || taken == max(least.taken, few) && x.cost < least.cost {
			least = x
		}
	}
	return least
}

func (b *bounds) pace(bytes int64) time.Duration {
	if b.rate <= 0 {
		return 0
	}
	return time.Duration(float64(bytes) / b.rate)
}
