package rounds

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// fixed is a subject with operations of one duration.
type fixed struct {
	name string
	took time.Duration
	err  error
	runs *[]string
}

func (f *fixed) Name() string { return f.name }

func (f *fixed) Run(_ time.Duration, t *Times) error {
	*f.runs = append(*f.runs, f.name)
	time.Sleep(f.took)
	t.Add(f.took)
	return f.err
}

func TestRoundsAreInterleaved(t *testing.T) { synctest.Test(t, roundsAreInterleaved) }

func roundsAreInterleaved(t *testing.T) {
	t.Helper()
	var runs []string
	began, checked := 0, 0
	subjects := []Subject{&fixed{"a", time.Millisecond, nil, &runs}, &fixed{"b", 8 * time.Millisecond, nil, &runs}}
	results, err := Measure(t.Context(), subjects, 3, 0, func() { began++ }, func(Subject) error { checked++; return nil })
	if err != nil || len(results) != 2 || began != 3 || checked != 6 {
		t.Fatalf("%+v, %v, %d rounds, %d checks", results, err, began, checked)
	}
	want := []string{"a", "b", "b", "a", "a", "b"}
	for i := range want {
		if runs[i] != want[i] {
			t.Fatalf("order %v, want %v", runs, want)
		}
	}
	a, b := results[0], results[1]
	if a.Subject != "a" || a.Ops != 3 || a.OpsPerSecond <= b.OpsPerSecond || a.P50Micros < 1000 || a.P50Micros > 1040 || b.P99Micros < 8000 {
		t.Errorf("results %+v, %+v", a, b)
	}
}

func TestMeasureFails(t *testing.T) {
	var runs []string
	failed := errors.New("failed")
	ok, fails := &fixed{"ok", 0, nil, &runs}, &fixed{"fails", 0, failed, &runs}
	none := func(Subject) error { return nil }
	if _, err := Measure(t.Context(), []Subject{ok, fails}, 1, 0, func() {}, none); !errors.Is(err, failed) {
		t.Errorf("subject: %v", err)
	}
	if _, err := Measure(t.Context(), []Subject{ok}, 1, 0, func() {}, func(Subject) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("check: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(failed)
	if _, err := Measure(ctx, []Subject{ok}, 1, 0, func() {}, none); !errors.Is(err, failed) {
		t.Errorf("context: %v", err)
	}
}

func TestParallelCallersEndAtTheFirstError(t *testing.T) {
	synctest.Test(t, parallelCallersEndAtTheFirstError)
}

func parallelCallersEndAtTheFirstError(t *testing.T) {
	t.Helper()
	failed, all := errors.New("failed"), new(Times)
	calls := make([]int, 3)
	err := Parallel(3, 5*time.Millisecond, all, func(i int, first bool) error {
		if first != (calls[i] == 0) {
			t.Errorf("caller %d, call %d: first is %v", i, calls[i], first)
		}
		if calls[i]++; i == 1 {
			return failed
		}
		time.Sleep(time.Millisecond)
		return nil
	})
	if !errors.Is(err, failed) || calls[1] != 1 || calls[0] < 2 || calls[2] < 2 || all.Total() != int64(calls[0]+calls[1]+calls[2]) {
		t.Errorf("%v, calls %v, %d times", err, calls, all.Total())
	}
}

func TestPercentilesAreCloseToTheTimes(t *testing.T) {
	all := new(Times)
	for i := range 1000 {
		all.Add(time.Duration(i+1) * time.Microsecond)
	}
	for part, want := range map[float64]float64{0.5: 501, 0.99: 991, 0.999: 1000} {
		if got := all.Micros(part); got < want*0.999 || got > want*1.04 {
			t.Errorf("%v of the times: %v us, want %v", part, got, want)
		}
	}
	if got := new(Times).Micros(0.5); got != 0 {
		t.Errorf("no times: %v", got)
	}
}
