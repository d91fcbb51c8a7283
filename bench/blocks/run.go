package blocks

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/bench/rounds"
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
		Load: rounds.Load(), Rounds: o.Rounds, RoundMillis: o.Duration.Milliseconds(), Points: []Point{},
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

// point measures all subjects with one piece length and depth.
func (b *run) point(ctx context.Context, size int64, depth int) (err error) {
	r, err := open(ctx, size, depth, b.o.Fabric)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	results, err := rounds.Measure(ctx, r.subjects, b.o.Rounds, b.o.Duration, func() {
		b.progress(fmt.Sprintf("%s at depth %d", bench.BytesText(size), depth))
		b.done++
	}, func(s rounds.Subject) error {
		if c, ok := s.(interface{ check() error }); ok {
			return c.check()
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%d bytes at depth %d: %w", size, depth, err)
	}
	for _, s := range results {
		b.report.Points = append(b.report.Points, Point{Bytes: size, Depth: depth, Result: s, GBps: s.OpsPerSecond * float64(size) / 1e9})
	}
	return nil
}
