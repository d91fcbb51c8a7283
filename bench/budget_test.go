package bench

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
)

// ticking is a clock that advances by a step each time it is read.
type ticking struct {
	at   time.Time
	step time.Duration
}

func (c *ticking) now() time.Time {
	c.at = c.at.Add(c.step)
	return c.at
}

// Measurements for which the budget is too short are left out and named, and the run exceeds the
// budget by at most a fifth. With a sufficient budget everything is measured.
func TestDefectBudgetIsExceeded(t *testing.T) {
	for _, step := range []time.Duration{100 * time.Microsecond, 10 * time.Millisecond} {
		c := &ticking{at: time.Unix(1, 0), step: step}
		begin := c.at
		o := small(engine, kernel)
		o.Reps, o.Budget, o.clock = 0, 4*time.Second, c.now
		o.Sizes, o.Counts = []int64{512, 1 << 10, 4 << 10}, []int{1, 2, 3, 4, 5, 6, 7, 8}
		var notices []string
		o.Notice = func(text string) { notices = append(notices, text) }
		rep, err := run(t, t.Context(), nil, o)
		if err != nil {
			t.Fatalf("%v a look: %v", step, err)
		}
		if took := c.at.Sub(begin); took > o.Budget*6/5 {
			t.Errorf("clock step %v: a budget of %v lasted %v", step, o.Budget, took)
		}
		o = o.withDefaults(device.Info{Driver: "sim"})
		if all := len(o.groups()); len(rep.Points) != 2*(all-len(rep.LeftOut)) || len(rep.Points) == 0 {
			t.Errorf("%v a look: %d points, and %d places left out of %d", step, len(rep.Points), len(rep.LeftOut), all)
		}
		if short := step == 10*time.Millisecond; short != (len(rep.LeftOut) > 0) || short != (len(notices) == 1) {
			t.Errorf("%v a look: %d places left out, %q", step, len(rep.LeftOut), notices)
		}
		var b strings.Builder
		if err := rep.WriteText(&b); err != nil || strings.Contains(b.String(), " it did not fit the budget of ") != (len(rep.LeftOut) > 0) {
			t.Errorf("%v a look: %v in\n%s", step, err, b.String())
		}
		if !slices.IsSortedFunc(rep.Points, func(p, q Point) int { return compareCells(p.Cell, q.Cell) }) {
			t.Errorf("%v a look: points are not in order", step)
		}
	}
}

func TestBudgetThatIsOverBeforeAnythingIsMeasured(t *testing.T) {
	o := small(engine)
	o.Reps, o.Budget, o.Began = 0, time.Second, time.Now().Add(-time.Minute)
	if _, err := run(t, t.Context(), nil, o); !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), "allow 2m1s or more") {
		t.Errorf("error %v", err)
	}
	o.Began, o.clock = time.Time{}, (&ticking{step: 300 * time.Millisecond}).now // within the first group
	if _, err := run(t, t.Context(), nil, o); !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), "or more") {
		t.Errorf("error %v", err)
	}
}

// A canceled run reports its measurements so far.
func TestDefectInterruptedRunReportsNothing(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("interrupted by the user")
	o := small(engine, kernel)
	o.Progress = func(done, _ int, _ string) {
		if done == 9 {
			cancel(why)
		}
	}
	rep, err := run(t, ctx, nil, o)
	if !errors.Is(err, why) || rep == nil || rep.Incomplete != Interrupted || len(rep.Points) != 8 || rep.Reference.ToDevice.Samples == 0 || rep.Machine.Seconds < 0 {
		t.Fatalf("%v, %+v", err, rep)
	}
	var b strings.Builder
	if err := rep.WriteText(&b); err != nil || !strings.HasPrefix(b.String(), "✗ INCOMPLETE: interrupted") {
		t.Errorf("%v:\n%s", err, b.String())
	}
}

func TestBudgetShares(t *testing.T) {
	c := &ticking{at: time.Unix(1, 0)}
	b := NewBudget(100*time.Second, c.at, c.now, 10)
	if err := b.Reserve(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	b.Part(5) // half of 80 s
	if until, fits := b.Begin(1); !fits || until != c.at.Add(8*time.Second) || b.Over() || b.Notice("units") != "" {
		t.Errorf("Begin(1) returned %v, %t", until, fits)
	}
	c.at = c.at.Add(30 * time.Second)
	b.End(1, true)
	if text := b.Notice("units"); !strings.Contains(text, "about 1 of 5 units") || !strings.Contains(text, "all take about 4m50s") {
		t.Errorf("notice %q", text)
	}
	if _, fits := b.Begin(1); fits {
		t.Error("10 s are sufficient for work of 30 s")
	}
	b.Skip(4)
	b.Part(5)
	if until, fits := b.Begin(5); !fits || until != time.Unix(81, 0) {
		t.Errorf("Begin(5) returned %v, %t", until, fits)
	}
	c.at = time.Unix(84, 0)
	if b.Over() {
		t.Error("3% are too much")
	}
	if c.at = time.Unix(87, 0); !b.Over() {
		t.Error("6% are not too much")
	}
	if err := NewBudget(time.Second, c.at, c.now, 1).Reserve(time.Second); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("Reserve of the whole budget: %v", err)
	}
	none := NewBudget(0, c.at, c.now, 1)
	if err := none.Reserve(time.Second); err != nil {
		t.Fatal(err)
	}
	c.at = c.at.Add(time.Hour)
	if _, fits := none.Begin(1); !fits || none.Over() || none.Notice("units") != "" {
		t.Error("no limit is one")
	}
}

func TestSpread(t *testing.T) {
	for n, want := range map[int][]int{0: {}, 1: {0}, 2: {1, 0}, 5: {2, 1, 4, 3, 0}, 8: {4, 0, 6, 2, 5, 1, 7, 3}} {
		if got := Spread(n); !slices.Equal(got, want) {
			t.Errorf("Spread(%d) returned %v, want %v", n, got, want)
		}
	}
}
