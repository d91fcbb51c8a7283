package blocks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/kvlane/kvlane/bench"
)

// Run measures all points. It returns ErrInvalid for options out of range, ErrCorrupt for wrong
// bytes, and the cause of ctx if ctx ends. In the last case it also returns a report of the
// measured points, marked as incomplete.
func Run(ctx context.Context, o Options) (*Report, error) {
	o.SetDefaults()
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("measure block server: %w", err)
	}
	r := &Report{
		Format: Format, Kind: Kind, CPUs: runtime.NumCPU(), GoVersion: runtime.Version(), Date: time.Now().UTC().Truncate(time.Second),
		Load: load(), Rounds: o.Rounds, RoundMillis: o.Duration.Milliseconds(), Points: []Point{},
	}
	b := &run{o: o, report: r, total: len(o.Sizes) * len(o.Depths) * o.Rounds}
	for _, size := range o.Sizes {
		for _, depth := range o.Depths {
			if err := b.point(ctx, size, depth); err != nil {
				r.Incomplete = err.Error()
				return r, err
			}
		}
	}
	b.progress("")
	return r, nil
}

// load returns the load average of the last minute, or "" if it is unknown.
func load() string {
	b, _ := os.ReadFile("/proc/loadavg") // the report works without it
	first, _, _ := strings.Cut(string(b), " ")
	return first
}

type run struct {
	o           Options
	report      *Report
	done, total int
}

func (b *run) progress(what string) {
	if b.o.Progress != nil {
		b.o.Progress(b.done, b.total, what)
	}
}

// sample is the result of a subject in one round.
type sample struct{ ops, cpu, allocs float64 }

// point measures all subjects with one piece length and depth.
func (b *run) point(ctx context.Context, size int64, depth int) (err error) {
	r, err := open(ctx, size, depth)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	samples, all := make([][]sample, len(r.subjects)), make([]times, len(r.subjects))
	for round := range b.o.Rounds {
		b.progress(fmt.Sprintf("%s at depth %d", bench.BytesText(size), depth))
		for n := range r.subjects {
			n = (n + round) % len(r.subjects)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			s, err := measure(r.subjects[n], b.o.Duration, &all[n])
			if err != nil {
				return fmt.Errorf("%s, %d bytes at depth %d: %w", r.subjects[n].name(), size, depth, err)
			}
			samples[n] = append(samples[n], s)
			if r.subjects[n].name() == TCP || r.subjects[n].name() == Batch {
				if err := r.check(); err != nil {
					return err
				}
			}
		}
		b.done++
	}
	for n, s := range r.subjects {
		median := func(of func(s sample) float64) float64 {
			var v []float64
			for _, s := range samples[n] {
				v = append(v, of(s))
			}
			slices.Sort(v)
			return v[len(v)/2]
		}
		p := Point{
			Subject: s.name(), Bytes: size, Depth: depth, Ops: all[n].total, OpsPerSecond: median(func(s sample) float64 { return s.ops }),
			P50Micros: all[n].micros(0.5), P99Micros: all[n].micros(0.99), P999Micros: all[n].micros(0.999),
			CPUMicros: median(func(s sample) float64 { return s.cpu }), Allocs: median(func(s sample) float64 { return s.allocs }),
		}
		p.GBps = p.OpsPerSecond * float64(size) / 1e9
		b.report.Points = append(b.report.Points, p)
	}
	return nil
}

// measure measures a subject in one round.
func measure(s subject, d time.Duration, all *times) (sample, error) {
	t := new(times)
	start, before := time.Now(), bench.UsageNow()
	if err := s.run(d, t); err != nil {
		return sample{}, err
	}
	seconds, used := time.Since(start).Seconds(), before.Since()
	all.merge(t)
	n := float64(t.total)
	return sample{ops: n / seconds, cpu: float64(used.CPU.Nanoseconds()) / 1e3 / n, allocs: float64(used.Allocs) / n}, nil
}
