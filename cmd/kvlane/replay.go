package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/replay"
	"github.com/kvlane/kvlane/telemetry"
)

// replayCommand holds the options of "kvlane replay".
type replayCommand struct {
	geometry geometryFlags
	engine   engineFlags
	etcd     etcdFlags
	run      replay.Config
	json     bool
	progress bool
	presets  bool
	// texts are the values of --threshold. thresholds are the parsed values.
	texts      []string
	thresholds []replay.Threshold
}

func newReplayCommand() *cobra.Command { return new(replayCommand).command() }

func (r *replayCommand) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "replay TRACE",
		Short: "Replay a request trace against the store and verify every byte",
		Long: `Replay a request trace against a paged KV cache on the device, as an inference engine would: look up each
request's prefix, load the hits into pages and verify every byte of them on the device, compute the misses and dump them.

TRACE holds one JSON object a line, {"timestamp", "input_length", "output_length", "hash_ids"}, as the traces of
Mooncake have it; it may be compressed by gzip. - is standard input. Every hash id is one full block, whose bytes follow from it.

With --speed requests start at their times in the trace, counted from the first, or later where too few of them may run at a time; the
report says how much later.

A --threshold is a name, one of < <= > >=, and a number, or for a time one with its unit:
` + strings.Join(replay.ThresholdNames(), ", ") + `.

Exit codes: 0, or 1 if a wrong byte was found, a block could not be stored, a threshold was missed or the replay was stopped, or 2 if the
command line is wrong. The report is printed also when the replay ends early.`,
		Example: `  kvlane replay trace.jsonl
  kvlane replay trace.jsonl --speed 10 --concurrency 16 --threshold 'hit_rate>=0.3' --threshold 'lag_p99<100ms'
  kvlane replay trace.jsonl --preset llama-3.1-8b --tp 8 --cache-bytes 8GiB --file-dir /var/cache/kvlane --concurrency 8`,
		Args: usageArgs(func(cmd *cobra.Command, args []string) error {
			if r.presets {
				return cobra.NoArgs(cmd, args)
			}
			return cobra.ExactArgs(1)(cmd, args)
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			if r.presets {
				return listPresets(cmd.OutOrStdout())
			}
			if r.run.Trace = args[0]; r.run.Trace == "-" {
				r.run.Trace = "/dev/stdin"
			}
			return r.execute(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	r.geometry.register(flags)
	flags.BoolVar(&r.presets, "list-presets", false, "list the presets and exit")
	r.engine.register(flags)
	r.etcd.register(flags)
	flags.IntVar(&r.run.Pages, "pages", 0, "pages of the KV cache on the device; 0 is enough for the longest requests")
	flags.IntVar(&r.run.Concurrency, "concurrency", 1, "requests at a time")
	flags.BoolVar(&r.run.Layerwise, "layerwise", false, "load and dump layer by layer")
	flags.Float64Var(&r.run.Speed, "speed", 0, "replay the trace's timestamps at this multiple of their speed; 0 is as fast as possible")
	flags.StringArrayVar(&r.texts, "threshold", nil, "fail unless this holds, such as hit_rate>=0.3 or load_p99<5ms; repeatable, see above")
	flags.IntVar(&r.run.Limit, "limit", 0, "replay the first requests only; 0 replays all")
	flags.Uint64Var(&r.run.Seed, "seed", 1, "seed of the order of free pages; the content of blocks does not depend on it")
	flags.BoolVar(&r.json, "json", false, "print the report as one JSON object")
	flags.BoolVar(&r.progress, "progress", false, "draw the progress bar even if standard error is not a terminal")
	return cmd
}

// execute runs the replay and prints its report.
func (r *replayCommand) execute(ctx context.Context, stdout, stderr io.Writer) (err error) {
	c, err := r.config()
	if err != nil {
		return &usageError{err}
	}
	notReady(ctx)
	// Scan the trace first, so that nothing is opened or created for an invalid trace.
	summary, err := replay.Scan(ctx, r.run.Trace, r.run.Limit)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, summary.Close()) }()
	if err := r.run.Fits(summary); err != nil {
		if traceErr := (*replay.TraceError)(nil); errors.As(err, &traceErr) {
			return err
		}
		return asUsage(err)
	}
	report := logNote
	if !r.json { // print notes before a possibly long replay
		if err := printSimulated(stdout, r.engine.noGPU); err != nil {
			return err
		}
		report = func(note string) { err = errors.Join(err, printNote(stdout, note)) }
	}
	e, err := openEngine(r.etcd.with(ctx), c, report)
	if err != nil {
		return addStoredGeometry(c.Model, err)
	}
	defer func() { err = errors.Join(err, closeEngine(ctx, e)) }()
	r.run.Device, r.run.Store, r.run.Memory = e.Device(), e.Store(), e
	r.run.Identity, r.run.Summary = e.Identity(), summary

	metrics := metricsOf(ctx)
	if err := e.ExportTo(metrics); err != nil {
		return err
	}
	isReady(ctx)
	shown := newProgress(stderr, "replay", r.progress)
	defer shown.end()
	r.run.Progress = steps(metrics, int64(summary.Requests), shown)

	rep, err := replay.Run(ctx, r.run)
	if rep == nil {
		return err
	}
	this := releaseOf(debug.ReadBuildInfo())
	rep.Machine.Command, rep.Version = commandLine(), this.tag()
	if r.json { // the text output already has the notes
		if r.engine.noGPU != nil {
			rep.Notes = append(rep.Notes, simulatedNote(r.engine.noGPU))
		}
		rep.Notes = append(rep.Notes, e.Notes()...)
	}
	return errors.Join(err, rep.Judge(r.thresholds), printReport(stdout, rep, r.json))
}

// config returns the configuration that the flags select. The error lists all errors.
func (r *replayCommand) config() (kvlane.Config, error) {
	var errs []error
	for _, f := range []struct {
		flag           string
		v, least, most int
	}{
		{"pages", r.run.Pages, 0, replay.MaxPages},
		{"limit", r.run.Limit, 0, math.MaxInt},
		{"concurrency", r.run.Concurrency, 1, replay.MaxConcurrency},
	} {
		switch {
		case f.v < f.least:
			errs = append(errs, fmt.Errorf("--%s %d: must be at least %d", f.flag, f.v, f.least))
		case f.v > f.most:
			errs = append(errs, fmt.Errorf("--%s %d: must be at most %d", f.flag, f.v, f.most))
		}
	}
	if s := r.run.Speed; math.IsNaN(s) || math.IsInf(s, 0) || s < 0 {
		errs = append(errs, fmt.Errorf("--speed %v: must be a number, at least 0", s))
	}
	for _, text := range r.texts {
		t, err := replay.ParseThreshold(text)
		if err == nil && t.NeedsSpeed() && r.run.Speed == 0 {
			err = fmt.Errorf("%q has no effect without --speed: only then do requests have start times", text)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("--threshold: %w", err))
		}
		r.thresholds = append(r.thresholds, t)
	}
	g, err := r.geometry.geometry()
	errs = append(errs, err)
	r.run.Geometry = g
	c, err := r.engine.config(g)
	errs = append(errs, err)
	return c, errors.Join(errs...)
}

// steps returns the function that receives the steps of a replay of total requests. It updates the
// metrics and the shown progress.
func steps(m *telemetry.Metrics, total int64, shown *progress) func(replay.Step) {
	p := telemetry.NewProgress(total)
	m.SetReplay(p)
	return func(s replay.Step) {
		p.Request(s.Accesses, s.Hits, s.VerifiedBytes, s.WrongBytes)
		done, _ := p.Requests()
		shown.show(done, total, "")
	}
}

// printReport prints the report to w as text or JSON.
func printReport(w io.Writer, rep *replay.Report, asJSON bool) error {
	if !asJSON {
		return rep.Print(w)
	}
	return printResult(w, true, rep, nil)
}
