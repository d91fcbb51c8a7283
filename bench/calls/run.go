package calls

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/kvlane/kvlane/bench/rounds"
)

// Run measures all points. It returns ErrInvalid for options out of range, ErrCorrupt for wrong
// bytes, the errors of calls, and the cause of ctx if ctx ends. In the last case it also returns a
// report of the measured points, marked as incomplete.
func Run(ctx context.Context, o Options) (*Report, error) {
	o.SetDefaults()
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("measure calls: %w", err)
	}
	r := &Report{
		Format: Format, Kind: Kind, CPUs: runtime.NumCPU(), GoVersion: runtime.Version(), Date: time.Now().UTC().Truncate(time.Second),
		Load: rounds.Load(), Address: o.Address, Rounds: o.Rounds, RoundMillis: o.Duration.Milliseconds(), Points: []Point{},
	}
	loads := o.loads()
	b := &run{o: o, report: r, total: len(loads) * o.Rounds}
	for _, l := range loads {
		if err := b.point(ctx, l); err != nil {
			r.Incomplete = err.Error()
			return r, err
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

// point measures all subjects with one load.
func (b *run) point(ctx context.Context, l Load) (err error) {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var subjects []rounds.Subject
	beside := make(map[string]func() float64)
	openers := []Opener{b.o.rpc}
	if b.o.Address == "" {
		openers = []Opener{openSockets, b.o.rpc}
	}
	for _, open := range append(openers, b.o.Extra...) {
		s, openErr := open(ctx, l)
		if openErr != nil {
			return fmt.Errorf("prepare %s: %w", l, openErr)
		}
		if s != nil {
			subjects = append(subjects, s)
			beside[s.Name()] = func() float64 { return besideGBps(s) }
			defer func() { err = errors.Join(err, s.Close()) }()
		}
	}
	results, err := rounds.Measure(ctx, subjects, b.o.Rounds, b.o.Duration, func() {
		b.progress(l.String())
		b.done++
	}, func(rounds.Subject) error { return nil })
	if err != nil {
		return fmt.Errorf("%s: %w", l, err)
	}
	for _, s := range results {
		b.report.Points = append(b.report.Points, Point{
			Result: s, Callers: l.Callers, BodyBytes: l.Body, AttachmentBytes: l.Attachment, GBps: s.OpsPerSecond * float64(l.Body+l.Attachment) / 1e9,
			BesideGBps: beside[s.Subject](),
		})
	}
	return nil
}
