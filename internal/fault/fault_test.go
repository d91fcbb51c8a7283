package fault_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func hits(p *fault.Plan, op string, n int) []int {
	var at []int
	for i := range n {
		if _, ok := p.Hit(op); ok {
			at = append(at, i)
		}
	}
	return at
}

func TestRulesPick(t *testing.T) {
	tests := []struct {
		name string
		rule fault.Rule
		want []int
	}{
		{"nth", fault.Nth("copy", 3), []int{3}},
		{"first", fault.Nth("copy", 0), []int{0}},
		{"every", fault.Every("copy", 3), []int{2, 5, 8}},
		{"always", fault.Every("copy", 0), []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
		{"after", fault.After("copy", 7), []int{7, 8, 9}},
		{"another operation", fault.Nth("fill", 3), nil},
		{"never", fault.Rate("copy", 0), nil},
		{"surely", fault.Rate("copy", 1), []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := hits(fault.New(1, tt.rule), "copy", 10); !slices.Equal(got, tt.want) {
				t.Errorf("picked %v, want %v", got, tt.want)
			}
		})
	}
}

func TestRateIsSeeded(t *testing.T) {
	run := func(seed uint64) []int { return hits(fault.New(seed, fault.Rate("read", 0.1)), "read", 1000) }
	first := run(7)
	if n := len(first); n < 60 || n > 150 {
		t.Errorf("%d of 1000 picked at a rate of 0.1", n)
	}
	if !slices.Equal(first, run(7)) {
		t.Error("the same seed gave different faults")
	}
	if slices.Equal(first, run(8)) {
		t.Error("another seed gave the same faults")
	}
}

func TestOperationsAreCountedByName(t *testing.T) {
	p := fault.New(1, fault.Nth("b", 1))
	for _, op := range []string{"a", "b", "a", "a"} {
		if _, ok := p.Hit(op); ok {
			t.Errorf("operation %s was hit", op)
		}
	}
	f, ok := p.Hit("b")
	var e *fault.Error
	if !ok || f.Action != fault.Fail || !errors.As(f.Err, &e) || e.Op != "b" || e.N != 1 {
		t.Errorf("fault of the second operation b: %v, %+v", ok, f)
	}
	if p.Seen("a") != 3 || p.Seen("b") != 2 || p.Injected() != 1 {
		t.Errorf("seen %d a, %d b, injected %d", p.Seen("a"), p.Seen("b"), p.Injected())
	}
}

func TestErrorKeepsItsCause(t *testing.T) {
	p := fault.New(1, fault.Nth("write", 0).Fail(errdefs.ErrNoSpace))
	f, _ := p.Hit("write")
	if !errors.Is(f.Err, fault.ErrInjected) || !errors.Is(f.Err, errdefs.ErrNoSpace) {
		t.Errorf("%v wraps too little", f.Err)
	}
}

func TestUnreportedFindsWhatWasSwallowed(t *testing.T) {
	p := fault.New(1, fault.Every("x", 1).Fail(nil), fault.Nth("y", 0).Corrupt(), fault.Nth("z", 0).Partial(nil))
	var errs []error
	for range 3 {
		f, _ := p.Hit("x")
		errs = append(errs, f.Err)
	}
	p.Hit("y")
	p.Hit("z")
	lost := p.Unreported(fmt.Errorf("job: %w", errors.Join(errs[0], fmt.Errorf("again: %w", errs[2]))), nil)
	if len(lost) != 2 || lost[0].ID != 1 || lost[1].Op != "z" {
		t.Errorf("unreported: %v; want fault 1 and the one of z", lost)
	}
}

func TestStallWaitsForRelease(t *testing.T) {
	p := fault.New(1, fault.Nth("launch", 0).Stall())
	done := make(chan error, 1)
	go func() {
		f, _ := p.Hit("launch")
		done <- f.Wait(t.Context())
	}()
	if err := p.Await(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		t.Fatalf("continued before the release: %v", err)
	default:
	}
	p.Release()
	p.Release()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestStallAndAwaitGiveUpWithTheirContext(t *testing.T) {
	p := fault.New(1, fault.Nth("launch", 0).Stall())
	f, _ := p.Hit("launch")
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := f.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait: %v", err)
	}
	if err := p.Await(ctx, 2); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("await: %v", err)
	}
}

func TestClearedAndNilPlansHitNothing(t *testing.T) {
	p := fault.New(1, fault.Every("a", 1))
	p.Clear()
	if got := hits(p, "a", 3); got != nil {
		t.Errorf("cleared plan hit %v", got)
	}
	p.Add(fault.Nth("a", 3))
	if got := hits(p, "a", 3); !slices.Equal(got, []int{0}) {
		t.Errorf("after Add: hit %v, want the fourth operation", got)
	}
	var none *fault.Plan
	if got := hits(none, "a", 3); got != nil || none.Injected() != 0 || none.Seen("a") != 0 {
		t.Errorf("nil plan hit %v", got)
	}
}
