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

// ErrOverBudget is returned for a unit that does not fit the budget. The unit is left out.
var ErrOverBudget = errors.New("the time is used up")

// slack and firstSlack are the parts of a budget by which a run may exceed it before the current
// unit is stopped. firstSlack holds until a unit was measured.
const (
	slack      = 0.05
	firstSlack = 0.15
)

// Budget divides the time of a run, including its set-up, among units of about equal cost: points,
// or groups of points. The caller leaves out and names the units that do not fit. It is not safe
// for concurrent use.
type Budget struct {
	total   time.Duration // zero: no limit
	begin   time.Time
	now     func() time.Time
	reserve time.Duration // for work with a duration of its own
	left    int           // remaining units

	// The current part: its remaining units, its planned end, and its completed units.
	part  int
	until time.Time
	done  int
	took  time.Duration
	start time.Time // start of the current unit

	measured bool
}

// NewBudget divides total, counted from began, among a number of units. A total of zero is no
// limit.
func NewBudget(total time.Duration, began time.Time, now func() time.Time, units int) *Budget {
	b := &Budget{total: total, begin: began, now: now, left: units}
	b.Part(units)
	return b
}

// Reserve keeps a part of the total for work with a duration of its own. Call it before the first
// unit. It returns ErrInvalid if nothing would be left.
func (b *Budget) Reserve(d time.Duration) error {
	if b.total > 0 && b.left > 0 && d >= b.total {
		return fmt.Errorf("of a budget of %v the windows beside a product alone take %v: allow more, or fewer or shorter windows: %w",
			b.total, d.Round(time.Second/10), errdefs.ErrInvalid)
	}
	b.reserve = d
	b.Part(b.left)
	return nil
}

// Part begins a part with a number of units and its share of the remaining time.
func (b *Budget) Part(units int) {
	now := b.now()
	b.part, b.done, b.took = units, 0, 0
	b.until = now.Add(portion(b.begin.Add(b.total-b.reserve).Sub(now), units, b.left))
}

func portion(d time.Duration, n, of int) time.Duration {
	return time.Duration(float64(d) * float64(n) / float64(max(of, 1)))
}

// Begin reports whether a number of units of the part fit, judged by the completed ones, and
// returns their planned end.
func (b *Budget) Begin(units int) (until time.Time, fits bool) {
	b.start = b.now()
	left := b.until.Sub(b.start)
	fits = b.total == 0 || left > 0 && (b.done == 0 || left >= portion(b.took, units, b.done)/2)
	return b.start.Add(portion(max(left, 0), units, b.part)), fits
}

// End ends units that Begin started. done is false for units that were stopped early.
func (b *Budget) End(units int, done bool) {
	if done {
		b.measured = true
		b.done, b.took = b.done+units, b.took+b.now().Sub(b.start)
	}
	b.Skip(units)
}

// Measured reports whether any unit was measured.
func (b *Budget) Measured() bool { return b != nil && b.measured }

// Skip removes units of the part that will not be measured.
func (b *Budget) Skip(units int) { b.left, b.part = b.left-units, b.part-units }

// Each measures named units, which form the part, each with a context of its own (see bound). The
// first units are far apart in the list. It returns the names of the units that did not fit or
// ended with ErrOverBudget; the latter with their duration, because they may have hung. It returns
// ErrInvalid if no unit was measured in time. progress and notice may be nil.
func (b *Budget) Each(ctx context.Context, names []string, progress func(done, total int, what string), notice func(text string), measure func(ctx context.Context, k int, until time.Time) error) (leftOut []string, err error) {
	report := func(done int, what string) {
		if progress != nil {
			progress(done, len(names), what)
		}
	}
	for i, k := range Spread(len(names)) {
		report(i, names[k])
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
	report(len(names), "")
	return leftOut, nil
}

// limit returns the time at which the current unit should be stopped.
func (b *Budget) limit() time.Time {
	more := slack
	if !b.measured {
		more = firstSlack
	}
	return b.until.Add(time.Duration(more * float64(b.total)))
}

// bound returns the context of a unit with the planned end until. The context ends with
// ErrOverBudget when Over is true, or, after the first measured unit, when the unit has taken twice
// its time. A hanging unit does not use up the time of the others.
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

// Outcome returns the result of a run that ended with err. If ctx ended after something was
// measured, it sets *incomplete and returns the report with the error. Other errors return no
// report. The error starts with what, and includes the cause of ctx. b is nil before the budget
// exists.
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

// Over reports whether the current unit should be stopped because the part exceeded its time.
func (b *Budget) Over() bool {
	return b.total > 0 && b.now().After(b.limit())
}

// Least returns the expected duration of the run if each remaining unit takes as long as the
// completed ones.
func (b *Budget) Least() time.Duration {
	return b.start.Sub(b.begin) + b.reserve + portion(b.took, b.left, b.done)
}

// TooShort returns the error of a run that measured nothing in its time.
func (b *Budget) TooShort() error {
	spent := b.now().Sub(b.begin)
	return fmt.Errorf("the budget of %v was used up before the first measurement, which took %v: allow %v or more: %w",
		b.total, spent.Round(time.Millisecond), max(2*spent, b.total).Round(time.Second)+time.Second, errdefs.ErrInvalid)
}

// Notice returns a message if not all units will fit, or "". It needs completed units.
func (b *Budget) Notice(what string) string {
	if b.total == 0 || b.done == 0 || b.part == 0 {
		return ""
	}
	fit := min(int(float64(b.part)*float64(b.until.Sub(b.now()))/float64(max(portion(b.took, b.part, b.done), 1))), b.part)
	if fit >= b.part*9/10 {
		return ""
	}
	return fmt.Sprintf("a budget of %v is too short for all points: about %d of %d %s will be measured, and the others listed; all take about %v",
		b.total, b.done+max(fit, 0), b.done+b.part, what, b.Least().Round(time.Second))
}

// Spread returns the numbers below n in an order whose first elements are far apart, starting in
// the middle. Runs that are too short measure the first elements.
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
