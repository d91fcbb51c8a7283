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
	DefaultMaxCTAs     = 8
	DefaultQueueing    = 0.5
	// Beside a large matrix product a kernel waits up to 1.4 ms for multiprocessors: what is worth that takes longer. Where none
	// waits, 8 MiB are as fast, and the first bytes are there sooner.
	DefaultMinChunkBytes = 8 << 20
	DefaultMaxChunkBytes = 128 << 20
	DefaultInterval      = 20 * time.Millisecond
)

// BudgetOptions says what a Budget keeps to. The zero value is the default.
type BudgetOptions struct {
	// HarmPercent is the slow-down that the host program may suffer, as it reports it with Hint. Zero:
	// DefaultHarmPercent.
	HarmPercent float64
	// Queueing is how much longer than expected batches with kernels may take, as a fraction, before that is taken for waiting
	// for multiprocessors: 1 is twice as long. Zero: DefaultQueueing, since beside a large product chunks of 8 MiB take 0.8 longer (H200).
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

// Budget bounds copies by what is seen of the work beside them. It lowers thread blocks when the host program reports more harm
// than the budget allows, and raises them when it is well below. Raising is by one step, lowering by half (AIMD: additive
// increase, multiplicative decrease), so that it leaves what does harm fast and comes back to it slowly. It never goes below one
// thread block, so what is planned under it always moves.
//
// Chunks are as large as they may be while kernels wait for multiprocessors, since each waits once, and are halved while none
// does. That they wait is no harm, and fewer thread blocks would wait as long. It begins with the highest limits. Safe for
// concurrent use; nothing blocks.
type Budget struct {
	o BudgetOptions

	mu       sync.Mutex
	limits   Limits
	since    time.Time // when the limits last changed, or were confirmed
	hint     gauge     // of percents, one a hint
	queue    gauge     // of time waited, to time expected
	harm     float64   // of the last interval, as a multiple of the budget
	calm     int       // intervals in a row that were well below the budget
	idle     int       // intervals in a row in which kernels waited for little
	ceiling  int       // thread blocks that did harm when they were last tried; zero: none known
	patience int       // calm intervals to wait before the ceiling is tried again
}

// gauge is what came in during an interval, as a ratio of two sums.
type gauge struct{ sum, of float64 }

func (g *gauge) ratio() float64 { return g.sum / g.of }

const (
	// relief is the part of the budget below which harm counts as well below: what lies between is left alone.
	relief = 0.5
	// waitRelief is relief where nothing has to wait: it is nearer, as batches take a little longer than profiled on an idle device too.
	waitRelief = 0.7
	// calmIntervals is how many intervals in a row must be that before anything is raised.
	calmIntervals = 2
	// quietIntervals is how many in a row nothing has to wait before chunks are halved: a batch keeps the chunks that it began with, and
	// one whose chunks are short when a model begins to compute beside it takes several times as long.
	quietIntervals = 25
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
	if !math.IsNaN(slowdownPercent) {
		b.told(&b.hint, slowdownPercent, 1)
	}
}

// Took tells how long a batch with kernels took, and how long it would have if nothing had run beside it.
func (b *Budget) Took(actual, expected time.Duration) {
	if expected > 0 {
		b.told(&b.queue, float64(actual-expected), float64(expected))
	}
}

func (b *Budget) told(g *gauge, v, of float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g.sum, g.of = g.sum+max(0, v), g.of+of
	if now := b.o.Clock.Now(); now.Sub(b.since) >= b.o.Interval {
		b.judge()
		b.since = now
		b.hint, b.queue = gauge{}, gauge{}
	}
}

// judge ends an interval: it compares what was seen during it with the budget.
func (b *Budget) judge() {
	if b.hint.of > 0 {
		b.judgeHarm(b.hint.ratio() / b.o.HarmPercent)
	}
	if b.queue.of > 0 {
		b.judgeWaits(b.queue.ratio() / b.o.Queueing)
	}
}

func (b *Budget) judgeWaits(waits float64) {
	switch {
	case waits > 1:
		b.idle, b.limits.ChunkBytes = 0, b.o.MaxChunkBytes
	case waits < waitRelief:
		if b.idle++; b.idle >= quietIntervals {
			b.idle, b.limits.ChunkBytes = 0, max(b.o.MinChunkBytes, b.limits.ChunkBytes/2)
		}
	default:
		b.idle = 0
	}
}

func (b *Budget) judgeHarm(harm float64) {
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
}

// raise goes one step up, unless that did harm lately.
func (b *Budget) raise() {
	if next := b.limits.CTAs + 1; next <= b.o.MaxCTAs && (next != b.ceiling || b.calm >= b.patience) {
		b.limits.CTAs = next
		b.calm = 0
	}
}
