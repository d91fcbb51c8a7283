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

// ErrOverBudget is returned for a unit that does not fit the budget.
var ErrOverBudget = errors.New("the time is used up")

// slack and firstSlack are fractions of a budget. A run may exceed its budget by this much before
// the current unit is stopped. firstSlack applies until a unit was measured.
const (
	slack      = 0.05
	firstSlack = 0.15
)

// Budget divides the time of a run, including its setup, among units of similar cost: points or
// groups of points. Units that do not fit are skipped, and the caller reports their names. It is
// not safe for concurrent use.
type Budget struct {
	total   time.Duration // zero: no limit
	begin   time.Time
	now     func() time.Time
	reserve time.Duration // time reserved for work with a fixed duration
	left    int           // remaining units

	// The current part: number of remaining units, planned end, number of completed units.
	part  int
	until time.Time
	done  int
	took  time.Duration
	start time.Time // start of the current unit

	measured bool
}

// NewBudget divides total, counted from began, among a number of units. A total of zero means no
// limit.
func NewBudget(total time.Duration, began time.Time, now func() time.Time, units int) *Budget {
	b := &Budget{total: total, begin: began, now: now, left: units}
	b.Part(units)
	return b
}

// Reserve reserves a part of the total for work with a fixed duration. Call it before the first
// unit. It returns ErrInvalid if no time would be left.
func (b *Budget) Reserve(d time.Duration) error {
	if b.total > 0 && b.left > 0 && d >= b.total {
		return fmt.Errorf("of a budget of %v the windows beside a product alone take %v: allow more, or fewer or shorter windows: %w",
			b.total, d.Round(time.Second/10), errdefs.ErrInvalid)
	}
	b.reserve = d
	b.Part(b.left)
	return nil
}

// Part begins a part with a number of units. The part gets the corresponding share of the remaining
// time.
func (b *Budget) Part(units int) {
	now := b.now()
	b.part, b.done, b.took = units, 0, 0
	b.until = now.Add(portion(b.begin.Add(b.total-b.reserve).Sub(now), units, b.left))
}

func portion(d time.Duration, n, of int) time.Duration {
	return time.Duration(float64(d) * float64(n) / float64(max(of, 1)))
}

// Begin reports whether the given number of units of the part will fit, based on the duration of
// completed ones. It also returns their planned end.
func (b *Budget) Begin(units int) (until time.Time, fits bool) {
	b.start = b.now()
	left := b.until.Sub(b.start)
	fits = b.total == 0 || left > 0 && (b.done == 0 || left >= portion(b.took, units, b.done)/2)
	return b.start.Add(portion(max(left, 0), units, b.part)), fits
}

// End ends units that Begin has started. done is false if they were stopped early.
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

// Each measures named units, which form the part. Each unit has its own context (see bound). The
// first measured units are far apart in the list. It returns the names of units that did not fit or
// ended with ErrOverBudget. For the latter it adds their duration, because they may have hung. It
// returns ErrInvalid if no unit was measured in time. progress and notice may be nil.
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

// limit returns the time at which the current unit must be stopped.
func (b *Budget) limit() time.Time {
	more := slack
	if !b.measured {
		more = firstSlack
	}
	return b.until.Add(time.Duration(more * float64(b.total)))
}

// bound returns the context of a unit whose planned end is until. The context ends with
// ErrOverBudget when Over is true, or, after the first unit, when the unit has taken twice its
// planned time. A hanging unit thus does not use up the time of the others.
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

// Outcome returns the result of a run that ended with err. If ctx ended after at least one
// measurement, it sets *incomplete and returns the report with the error. For other errors it
// returns no report. The error begins with what and includes the cause of ctx. b is nil before the
// budget was created.
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

// Over reports whether the current unit must be stopped because the part has exceeded its time.
func (b *Budget) Over() bool {
	return b.total > 0 && b.now().After(b.limit())
}

// Least returns the expected duration of the run if the remaining units take as long as the
// completed ones.
func (b *Budget) Least() time.Duration {
	return b.start.Sub(b.begin) + b.reserve + portion(b.took, b.left, b.done)
}

// TooShort returns the error for a run that has measured nothing within its budget.
func (b *Budget) TooShort() error {
	spent := b.now().Sub(b.begin)
	return fmt.Errorf("the budget of %v was used up before the first measurement, which took %v: allow %v or more: %w",
		b.total, spent.Round(time.Millisecond), max(2*spent, b.total).Round(time.Second)+time.Second, errdefs.ErrInvalid)
}

// Notice returns a message if not all units will fit, otherwise "". At least one unit must have
// completed.
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

// Spread returns the numbers below n in an order in which the first elements are far apart. A run
// that is too short for all of them measures the first ones.
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
