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

// The defaults of BudgetOptions.
const (
	DefaultInterferencePercent = 3
	DefaultMaxCTAs             = 8
	DefaultQueueing            = 0.5
	// During a large matrix product a kernel waits up to 1.4 ms for multiprocessors, so only long
	// chunks are worth a wait. Without waits, 8 MiB chunks are as fast as larger ones and their
	// first bytes arrive earlier.
	DefaultMinChunkBytes = 8 << 20
	DefaultMaxChunkBytes = 128 << 20
	DefaultInterval      = 20 * time.Millisecond
)

// BudgetOptions configures a Budget. The zero value selects the defaults.
type BudgetOptions struct {
	// InterferencePercent is the acceptable slowdown of the host program, in the unit of Hint.
	// Zero: DefaultInterferencePercent.
	InterferencePercent float64
	// Queueing is the accepted delay of batches with kernels, as a fraction of the expected time: 1
	// means twice the expected time. A longer delay counts as waiting for multiprocessors. Zero:
	// DefaultQueueing. During a large matrix product, the delay of 8 MiB chunks is 0.8 (H200).
	Queueing float64
	// MaxCTAs is the maximum number of thread blocks. Zero: DefaultMaxCTAs.
	MaxCTAs int
	// MinChunkBytes and MaxChunkBytes bound the size of chunks. Zero: DefaultMinChunkBytes,
	// DefaultMaxChunkBytes.
	MinChunkBytes, MaxChunkBytes int64
	// Interval is the minimum time between two changes of a limit, so that the effect of a change
	// is observed before the next one. Zero: DefaultInterval.
	Interval time.Duration
	// Clock times the intervals. Default: the system clock.
	Clock clockwork.Clock
}

// Validate returns an error for every field that is out of range.
func (o BudgetOptions) Validate() error {
	var errs []error
	bad := func(field string, v any) {
		errs = append(errs, fmt.Errorf("budget: %s is %v: %w", field, v, errdefs.ErrInvalid))
	}
	if !inRange(o.InterferencePercent, 100) {
		bad("InterferencePercent", o.InterferencePercent)
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

// Limits are the current limits of a Budget.
type Limits struct {
	CTAs       int
	ChunkBytes int64
}

// Budget adapts the limits of copies to their observed effect on concurrent work. If the host
// program reports more slowdown than InterferencePercent, it halves the number of thread blocks.
// While the slowdown stays well below that, it adds one at a time (AIMD: additive increase,
// multiplicative decrease). At least one thread block is always allowed, so every batch can be
// planned.
//
// While kernels wait for multiprocessors, chunks have MaxChunkBytes, because each chunk waits once.
// While no kernel waits, the chunk size is halved step by step. Such waits do not count as
// slowdown, because fewer thread blocks would wait as long. A budget starts with the highest
// limits. It is safe for concurrent use, and no method blocks.
type Budget struct {
	o BudgetOptions

	mu           sync.Mutex
	limits       Limits
	since        time.Time // end of the last interval
	hint         gauge     // reported slowdowns in percent, one per hint
	queue        gauge     // time waited, relative to the expected time
	interference float64   // of the last interval with hints, as a multiple of InterferencePercent
	belowCount   int       // consecutive intervals with slowdown well below the budget
	idle         int       // consecutive intervals in which kernels waited little
	ceiling      int       // thread blocks with which the slowdown was last too high, or zero
	patience     int       // intervals well below the budget before the ceiling is tried again
}

// gauge accumulates the ratio of two sums during an interval.
type gauge struct{ sum, of float64 }

func (g *gauge) ratio() float64 { return g.sum / g.of }

const (
	// relief is the share of the budget below which the slowdown counts as well below it. Between
	// relief and 1 the limits do not change.
	relief = 0.5
	// waitRelief is the same share for waits. It is closer to 1, because batches take slightly
	// longer than profiled even on an idle device.
	waitRelief = 0.7
	// calmIntervals is the number of consecutive intervals well below the budget after which a
	// limit is raised.
	calmIntervals = 2
	// quietIntervals is the number of consecutive intervals without waits after which the chunk
	// size is halved. It is large, because a batch keeps the chunk size that it started with: if a
	// model starts to compute during the batch, short chunks take several times as long.
	quietIntervals = 25
	// maxPatience bounds Budget.patience, which doubles each time the same ceiling causes too much
	// slowdown.
	maxPatience = 256
)

// NewBudget returns a budget with the highest limits.
func NewBudget(o BudgetOptions) (*Budget, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("make budget: %w", err)
	}
	o.setDefaults()
	b := &Budget{o: o, limits: Limits{CTAs: o.MaxCTAs, ChunkBytes: o.MaxChunkBytes}, since: o.Clock.Now()}
	return b, nil
}

func (o *BudgetOptions) setDefaults() {
	if o.InterferencePercent == 0 {
		o.InterferencePercent = DefaultInterferencePercent
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

// Limits returns the current limits.
func (b *Budget) Limits() Limits {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.limits
}

// Interference returns the last observed slowdown as a multiple of the budget. Values above 1
// exceed it.
func (b *Budget) Interference() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.interference
}

// Hint records a slowdown that the host program has measured, in percent of the time that its work
// takes without concurrent copies. Negative values count as zero; NaN is ignored.
func (b *Budget) Hint(slowdownPercent float64) {
	if !math.IsNaN(slowdownPercent) {
		b.addSample(&b.hint, slowdownPercent, 1)
	}
}

// AddDuration records the duration of a batch with kernels, and its expected duration without
// concurrent work.
func (b *Budget) AddDuration(actual, expected time.Duration) {
	if expected > 0 {
		b.addSample(&b.queue, float64(actual-expected), float64(expected))
	}
}

func (b *Budget) addSample(g *gauge, v, of float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g.sum, g.of = g.sum+max(0, v), g.of+of
	if now := b.o.Clock.Now(); now.Sub(b.since) >= b.o.Interval {
		b.judge()
		b.since = now
		b.hint, b.queue = gauge{}, gauge{}
	}
}

// judge ends an interval: it compares the observations with the budget and adapts the limits.
func (b *Budget) judge() {
	if b.hint.of > 0 {
		b.judgeInterference(b.hint.ratio() / b.o.InterferencePercent)
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

func (b *Budget) judgeInterference(interference float64) {
	b.interference = interference
	switch {
	case interference > 1:
		b.belowCount = 0
		b.lower()
	case interference < relief:
		if b.belowCount++; b.belowCount >= calmIntervals {
			b.raise()
		}
	default:
		b.belowCount = 0
	}
}

// lower halves the number of thread blocks and records the old number as the ceiling. If it was
// already the ceiling, patience doubles.
func (b *Budget) lower() {
	if b.ceiling == b.limits.CTAs {
		b.patience = min(2*b.patience, maxPatience)
	} else {
		b.ceiling, b.patience = b.limits.CTAs, 2*calmIntervals
	}
	b.limits.CTAs = max(1, b.limits.CTAs/2)
}

// raise allows one more thread block. If that is the ceiling, it does so only after patience
// intervals.
func (b *Budget) raise() {
	if next := b.limits.CTAs + 1; next <= b.o.MaxCTAs && (next != b.ceiling || b.belowCount >= b.patience) {
		b.limits.CTAs = next
		b.belowCount = 0
	}
}
