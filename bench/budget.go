package bench

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/present"
)

// ErrOverBudget is of what takes longer than is left of a budget, and is to be left out.
var ErrOverBudget = errors.New("the time is used up")

// The parts of a budget by which a run may exceed it before what is under way is given up: where something was measured, and of the first.
const (
	slack      = 0.05
	firstSlack = 0.15
)

// Budget is the time that a run may take in all, its set-up included, and how it is shared among units of about the same cost: points,
// or groups of them. Units that do not fit are for the caller to leave out and to name. One user at a time.
type Budget struct {
	total   time.Duration // zero: no limit
	begin   time.Time
	now     func() time.Time
	reserve time.Duration // for what takes a time of its own
	left    int           // units to come

	// Of the part that is measured: what is to come, when it should end, and what was done of it.
	part  int
	until time.Time
	done  int
	took  time.Duration
	start time.Time // of what is under way

	measured bool
}

// NewBudget shares total, from began on, among so many units. A total of zero is no limit.
func NewBudget(total time.Duration, began time.Time, now func() time.Time, units int) *Budget {
	b := &Budget{total: total, begin: began, now: now, left: units}
	b.Part(units)
	return b
}

// Reserve keeps a part of the total for what has a time of its own, before the first unit. It fails with ErrInvalid if nothing would be left.
func (b *Budget) Reserve(d time.Duration) error {
	if b.total > 0 && b.left > 0 && d >= b.total {
		return fmt.Errorf("of a budget of %v the windows beside a product alone take %v: allow more, or fewer or shorter windows: %w",
			b.total, d.Round(time.Second/10), errdefs.ErrInvalid)
	}
	b.reserve = d
	b.Part(b.left)
	return nil
}

// Part begins a part of so many of the units, which gets its share of the time that is left.
func (b *Budget) Part(units int) {
	now := b.now()
	b.part, b.done, b.took = units, 0, 0
	b.until = now.Add(portion(b.begin.Add(b.total-b.reserve).Sub(now), units, b.left))
}

// Spend says that what the reserve was kept for is done.
func (b *Budget) Spend() { b.reserve = 0 }

func portion(d time.Duration, n, of int) time.Duration {
	return time.Duration(float64(d) * float64(n) / float64(max(of, 1)))
}

// Begin reports whether so many units of the part fit, by what those before took, and when they should end.
func (b *Budget) Begin(units int) (until time.Time, fits bool) {
	b.start = b.now()
	left := b.until.Sub(b.start)
	fits = b.total == 0 || left > 0 && (b.done == 0 || left >= portion(b.took, units, b.done)/2)
	return b.start.Add(portion(max(left, 0), units, b.part)), fits
}

// End says that what began has ended, or with done unset was given up.
func (b *Budget) End(units int, done bool) {
	if done {
		b.measured = true
		b.done, b.took = b.done+units, b.took+b.now().Sub(b.start)
	}
	b.Skip(units)
}

// Measured reports whether any unit was measured.
func (b *Budget) Measured() bool { return b != nil && b.measured }

// Skip says that so many units of the part will not be measured.
func (b *Budget) Skip(units int) { b.left, b.part = b.left-units, b.part-units }

// Each measures named units, which all are of the part: those first that lie far apart, each with a context of its own (see bound). It returns
// the names of those that did not fit, and of those that measure gave up with ErrOverBudget, which say after how long: they may have stood
// still. It fails with ErrInvalid if none was measured in time. Progress and notice may be nil.
func (b *Budget) Each(ctx context.Context, names []string, progress func(done, total int, what string), notice func(text string), measure func(ctx context.Context, k int, until time.Time) error) (leftOut []string, err error) {
	tell := func(done int, what string) {
		if progress != nil {
			progress(done, len(names), what)
		}
	}
	for i, k := range Spread(len(names)) {
		tell(i, names[k])
		until, fits := b.Begin(1)
		err, name := ErrOverBudget, names[k]
		if fits {
			bounded, cancel := b.bound(ctx, until)
			err = measure(bounded, k, until)
			cancel()
			if errors.Is(err, ErrOverBudget) {
				name = fmt.Sprintf("%s (given up after %s)", name, present.Duration(b.now().Sub(b.start)))
			}
		}
		b.End(1, err == nil)
		switch {
		case errors.Is(err, ErrOverBudget) && !b.Measured():
			return nil, b.TooShort()
		case errors.Is(err, ErrOverBudget):
			leftOut = append(leftOut, name)
		case err != nil:
			return leftOut, fmt.Errorf("%s: %w", names[k], err)
		case i == 0 && notice != nil:
			if text := b.Notice("places"); text != "" {
				notice(text)
			}
		}
	}
	tell(len(names), "")
	return leftOut, nil
}

// limit is when what is under way should be given up.
func (b *Budget) limit() time.Time {
	more := slack
	if !b.measured {
		more = firstSlack
	}
	return b.until.Add(time.Duration(more * float64(b.total)))
}

// bound returns a context for what has just begun and should end at until. It ends with ErrOverBudget once Over is true, or, where something was measured
// before, once that took twice its time: what stands still is not to take the others' time too.
func (b *Budget) bound(ctx context.Context, until time.Time) (context.Context, context.CancelFunc) {
	if b.total == 0 {
		return context.WithCancel(ctx)
	}
	end := b.limit()
	if twice := until.Add(until.Sub(b.start)); b.measured && twice.Before(end) {
		end = twice
	}
	return context.WithTimeoutCause(ctx, end.Sub(b.start), ErrOverBudget)
}

// Outcome is what a run returns with which err ended: the report if nothing failed, or if ctx ended after something was measured, which
// incomplete then says. The error is about what, and has the context's cause if ctx ended. Budget b is nil before there is one.
func Outcome[R any](ctx context.Context, b *Budget, rep *R, incomplete *string, what string, err error) (*R, error) {
	if err == nil {
		return rep, nil
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = errors.Join(cause, err)
	}
	err = fmt.Errorf("%s: %w", what, err)
	if ctx.Err() == nil || !b.Measured() {
		return nil, err
	}
	*incomplete = Interrupted
	return rep, err
}

// Over reports whether the part took so much more than its time that what is under way should be given up.
func (b *Budget) Over() bool {
	return b.total > 0 && b.now().After(b.limit())
}

// Least is about how long the run takes if everything is measured as shortly as what was measured so far.
func (b *Budget) Least() time.Duration {
	return b.start.Sub(b.begin) + b.reserve + portion(b.took, b.left, b.done)
}

// TooShort says that the time was over before anything was measured.
func (b *Budget) TooShort() error {
	spent := b.now().Sub(b.begin)
	return fmt.Errorf("the budget of %v was used up before anything was measured, which took %v: allow %v or more: %w",
		b.total, spent.Round(time.Millisecond), max(2*spent, b.total).Round(time.Second)+time.Second, errdefs.ErrInvalid)
}

// Notice says that not all units will fit, or nothing where they will. It means something once some have ended.
func (b *Budget) Notice(what string) string {
	if b.total == 0 || b.done == 0 || b.part == 0 {
		return ""
	}
	fit := min(int(float64(b.part)*float64(b.until.Sub(b.now()))/float64(max(portion(b.took, b.part, b.done), 1))), b.part)
	if fit >= b.part*9/10 {
		return ""
	}
	return fmt.Sprintf("a budget of %v is too short for all: about %d of %d %s will be measured, and the others named; all take about %v",
		b.total, b.done+max(fit, 0), b.done+b.part, what, b.Least().Round(time.Second))
}

// Spread returns the numbers below n in an order whose first few lie far apart, from the middle on: what is measured where the time is
// too short for all.
func Spread(n int) []int {
	width := bits.Len(uint(max(n-1, 0)))
	order := make([]int, 0, n)
	for i := range 1 << width {
		if v := int(bits.Reverse(uint(i)) >> (bits.UintSize - width)); v < n {
			order = append(order, (v+n/2)%n)
		}
	}
	return order
}
