package plan

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
)

// Defaults of BudgetOptions.
const (
	DefaultHarmPercent = 3
	DefaultQueueing    = 1.0
	// Beside a large matrix product a kernel waits up to 1.4 ms for multiprocessors. A staged copy that is to keep the bus
	// busy meanwhile needs chunks that take longer than that.
	DefaultMinChunkBytes = 64 << 20
	DefaultMaxChunkBytes = 128 << 20
	DefaultInterval      = 20 * time.Millisecond
)

// BudgetOptions says what a Budget keeps to. The zero value is the default.
type BudgetOptions struct {
	// HarmPercent is the slow-down that the host program may suffer, as it reports it with Hint. Zero:
	// DefaultHarmPercent.
	HarmPercent float64
	// Queueing is how much longer than expected own kernels may take, as a fraction, before that is taken for a sign that
	// they crowd out others: 1 is twice as long. It counts only where the host program gives no hints. Zero:
	// DefaultQueueing.
	Queueing float64
	// MaxCTAs is the most thread blocks ever allowed. Zero: DefaultMaxCTAs.
	MaxCTAs int
	// MinChunkBytes and MaxChunkBytes bound what is given to the device at once. Zero: DefaultMinChunkBytes,
	// DefaultMaxChunkBytes.
	MinChunkBytes, MaxChunkBytes int64
	// Interval is how long a bound is kept before the next change, so that its effect is seen before it is judged. Zero:
	// DefaultInterval.
	Interval time.Duration
	// Clock times the intervals. Default: the real clock.
	Clock clockwork.Clock
}

// Validate reports every field that is out of range.
func (o BudgetOptions) Validate() error {
	var errs []error
	bad := func(field string, v any) {
		errs = append(errs, fmt.Errorf("budget: %s is %v: %w", field, v, errdefs.ErrInvalid))
	}
	if !inRange(o.HarmPercent, 100) {
		bad("HarmPercent", o.HarmPercent)
	}
	if !inRange(o.Queueing, math.MaxFloat64) {
		bad("Queueing", o.Queueing)
	}
	if o.MaxCTAs < 0 || o.MaxCTAs > maxCTAs {
		bad("MaxCTAs", o.MaxCTAs)
	}
	if o.MinChunkBytes < 0 || o.MaxChunkBytes < 0 || o.MaxChunkBytes > 0 && o.MaxChunkBytes < o.MinChunkBytes {
		bad("chunk bytes", [2]int64{o.MinChunkBytes, o.MaxChunkBytes})
	}
	if o.Interval < 0 {
		bad("Interval", o.Interval)
	}
	return errors.Join(errs...)
}

// Limits are what a Budget allows now.
type Limits struct {
	CTAs       int
	ChunkBytes int64
}

// Budget keeps the harm that copies do to what computes beside them within bounds: it lowers thread blocks and chunk size
// when the harm is beyond the budget, and raises them when it is well below. Raising is by one step, lowering by half
// (AIMD: additive increase, multiplicative decrease), so that it leaves what does harm fast and comes back to it slowly. It
// begins with the highest limits and never goes below one thread block, so what is planned under it always moves. Safe for
// concurrent use; nothing blocks.
type Budget struct {
	o BudgetOptions

	mu       sync.Mutex
	limits   Limits
	since    time.Time // when the limits last changed, or were confirmed
	hint     gauge     // percent
	queue    gauge     // fraction
	harm     float64   // of the last interval, as a multiple of the budget
	calm     int       // intervals in a row that were well below the budget
	ceiling  int       // thread blocks that did harm when they were last tried; zero: none known
	patience int       // calm intervals to wait before the ceiling is tried again
}

// gauge averages what comes in during an interval.
type gauge struct {
	sum float64
	n   int
}

func (g *gauge) add(v float64) { g.sum, g.n = g.sum+v, g.n+1 }

func (g *gauge) mean() float64 { return g.sum / float64(g.n) }

const (
	// relief is the part of the budget below which harm counts as well below: what lies between is left alone.
	relief = 0.5
	// calmIntervals is how many intervals in a row must be that before anything is raised.
	calmIntervals = 2
	// maxPatience bounds how long a bound that did harm is left alone, in calm intervals. The wait doubles each time that
	// trying it again did harm again.
	maxPatience = 256
)

// NewBudget returns a budget that begins with the highest limits.
func NewBudget(o BudgetOptions) (*Budget, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("make budget: %w", err)
	}
	o.setDefaults()
	b := &Budget{o: o, limits: Limits{CTAs: o.MaxCTAs, ChunkBytes: o.MaxChunkBytes}, since: o.Clock.Now()}
	return b, nil
}

func (o *BudgetOptions) setDefaults() {
	if o.HarmPercent == 0 {
		o.HarmPercent = DefaultHarmPercent
	}
	if o.Queueing == 0 {
		o.Queueing = DefaultQueueing
	}
	if o.MaxCTAs == 0 {
		o.MaxCTAs = DefaultMaxCTAs
	}
	if o.MinChunkBytes == 0 {
		o.MinChunkBytes = DefaultMinChunkBytes
		if o.MaxChunkBytes > 0 {
			o.MinChunkBytes = min(o.MinChunkBytes, o.MaxChunkBytes)
		}
	}
	if o.MaxChunkBytes == 0 {
		o.MaxChunkBytes = max(DefaultMaxChunkBytes, o.MinChunkBytes)
	}
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	}
	if o.Clock == nil {
		o.Clock = clockwork.NewRealClock()
	}
}

// Limits returns what is allowed now.
func (b *Budget) Limits() Limits {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.limits
}

// Harm returns the harm that was seen last, as a multiple of what the budget allows: beyond 1 is too much.
func (b *Budget) Harm() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.harm
}

// Hint tells the slow-down that the host program sees, in percent of the time of its work without copies beside it.
// Negative values count as none; NaN is ignored.
func (b *Budget) Hint(slowdownPercent float64) {
	b.told(&b.hint, slowdownPercent)
}

// Waited tells how long a kernel of one's own waited until it ran, and how long it should have.
func (b *Budget) Waited(waited, expected time.Duration) {
	if expected <= 0 {
		return
	}
	b.told(&b.queue, float64(waited)/float64(expected)-1)
}

func (b *Budget) told(g *gauge, v float64) {
	if math.IsNaN(v) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	g.add(max(0, v))
	if now := b.o.Clock.Now(); now.Sub(b.since) >= b.o.Interval {
		b.judge()
		b.since = now
		b.hint, b.queue = gauge{}, gauge{}
	}
}

// judge ends an interval: it compares what was seen during it with the budget.
func (b *Budget) judge() {
	harm := 0.0
	switch {
	case b.hint.n > 0:
		harm = b.hint.mean() / b.o.HarmPercent
	case b.queue.n > 0:
		harm = b.queue.mean() / b.o.Queueing
	}
	b.harm = harm
	switch {
	case harm > 1:
		b.calm = 0
		b.lower()
	case harm < relief:
		if b.calm++; b.calm >= calmIntervals {
			b.raise()
		}
	default:
		b.calm = 0
	}
}

// lower halves. The bound that did harm is remembered, and left alone twice as long as the last time.
func (b *Budget) lower() {
	if b.ceiling == b.limits.CTAs {
		b.patience = min(2*b.patience, maxPatience)
	} else {
		b.ceiling, b.patience = b.limits.CTAs, 2*calmIntervals
	}
	b.limits.CTAs = max(1, b.limits.CTAs/2)
	b.limits.ChunkBytes = max(b.o.MinChunkBytes, b.limits.ChunkBytes/2)
}

// raise goes one step up: thread blocks first, as they decide what rate is reached, then the chunk.
func (b *Budget) raise() {
	switch next := b.limits.CTAs + 1; {
	case next <= b.o.MaxCTAs && (next != b.ceiling || b.calm >= b.patience):
		b.limits.CTAs = next
		b.calm = 0
	case b.limits.ChunkBytes < b.o.MaxChunkBytes:
		b.limits.ChunkBytes = min(b.o.MaxChunkBytes, b.limits.ChunkBytes+b.o.MinChunkBytes)
	}
}
