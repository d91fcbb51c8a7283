package rounds

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvlane/kvlane/bench"
)

// Subject is an implementation that is measured.
type Subject interface {
	Name() string
	// Run keeps operations in progress for a duration, and adds the time of each operation.
	Run(d time.Duration, t *Times) error
}

// Result is the result of a subject. Rates and costs are medians of the rounds. Latencies include
// all rounds. CPU time and allocations are those of the whole process.
type Result struct {
	Subject      string  `json:"subject"`
	Ops          int64   `json:"ops"`
	OpsPerSecond float64 `json:"ops_per_s"`
	P50Micros    float64 `json:"p50_us"`
	P99Micros    float64 `json:"p99_us"`
	P999Micros   float64 `json:"p999_us"`
	CPUMicros    float64 `json:"cpu_us"` // CPU time per operation
	Allocs       float64 `json:"allocs"` // heap allocations per operation
}

// Measure measures subjects in interleaved rounds. check is called after each run of a subject.
// began is called before each round. Measure returns the errors of subjects and of check, and the
// cause of ctx if ctx ends.
func Measure(ctx context.Context, subjects []Subject, count int, d time.Duration, began func(), check func(Subject) error) ([]Result, error) {
	samples, all := make([][]sample, len(subjects)), make([]Times, len(subjects))
	for round := range count {
		began()
		for n := range subjects {
			n = (n + round) % len(subjects)
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			s, err := measure(subjects[n], d, &all[n])
			if err == nil {
				err = check(subjects[n])
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", subjects[n].Name(), err)
			}
			samples[n] = append(samples[n], s)
		}
	}
	results := make([]Result, len(subjects))
	for n, s := range subjects {
		median := func(of func(s sample) float64) float64 {
			var v []float64
			for _, s := range samples[n] {
				v = append(v, of(s))
			}
			slices.Sort(v)
			return v[len(v)/2]
		}
		results[n] = Result{
			Subject: s.Name(), Ops: all[n].total, OpsPerSecond: median(func(s sample) float64 { return s.ops }),
			P50Micros: all[n].Micros(0.5), P99Micros: all[n].Micros(0.99), P999Micros: all[n].Micros(0.999),
			CPUMicros: median(func(s sample) float64 { return s.cpu }), Allocs: median(func(s sample) float64 { return s.allocs }),
		}
	}
	return results, nil
}

// sample is the result of a subject in one round.
type sample struct{ ops, cpu, allocs float64 }

// measure measures a subject in one round.
func measure(s Subject, d time.Duration, all *Times) (sample, error) {
	t := new(Times)
	start, before := time.Now(), bench.UsageNow()
	if err := s.Run(d, t); err != nil {
		return sample{}, err
	}
	seconds, used := time.Since(start).Seconds(), before.Since()
	all.Merge(t)
	n := float64(t.total)
	return sample{ops: n / seconds, cpu: float64(used.CPU.Nanoseconds()) / 1e3 / n, allocs: float64(used.Allocs) / n}, nil
}

// Parallel runs callers goroutines. Each calls f until the duration has passed, but at least once,
// and Parallel adds the times of the calls to t. first is set in the first call of a goroutine. A
// goroutine ends at its first error.
func Parallel(callers int, d time.Duration, t *Times, f func(caller int, first bool) error) error {
	end := time.Now().Add(d)
	return Concurrent(callers, t, func(i int, t *Times) (err error) {
		last := time.Now()
		for first := true; err == nil && (first || last.Before(end)); first = false {
			err = f(i, first)
			now := time.Now()
			t.Add(now.Sub(last))
			last = now
		}
		return err
	})
}

// Concurrent calls f n times at once, adds the times of all to t, and returns one of the errors.
func Concurrent(n int, t *Times, f func(i int, t *Times) error) error {
	all, errs := make([]Times, n), make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { errs[i] = f(i, &all[i]) })
	}
	group.Wait()
	for i := range all {
		t.Merge(&all[i])
	}
	return cmp.Or(errs...) // callers mostly have the same error
}

// Load returns the load average of the last minute, or "" if it is unknown.
func Load() string {
	b, _ := os.ReadFile("/proc/loadavg") // reports work without it
	first, _, _ := strings.Cut(string(b), " ")
	return first
}
