package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/replay"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

func newBenchCommand() *cobra.Command {
	cmd := newGroupCommand("bench", "Measure this machine's paths", "bench measures how fast this machine moves KV cache.")
	cmd.AddCommand(newBenchCopyCommand())
	return cmd
}

// benchFlags are what the command line says of a copy benchmark, still as text.
type benchFlags struct {
	device       string
	index        int
	sizes, paths []string
	run          bench.Options
	json, csv    bool
}

func newBenchCopyCommand() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "copy",
		Short: "Measure copies of scattered blocks between host and device, by path",
		Long: `copy measures each path between pinned host memory and scattered blocks of device memory, both ways, beside one large copy
in the same run; then the latency of one small block. Bytes are checked after every point: a run that moved wrong ones fails.

The path copy-engine makes one copy a block, as scattered blocks have no neighbors to merge with; auto is the stream's own choice.
Figures of the simulated device are labeled as such.`,
		Example: "  kvlane bench copy --device cuda --sizes 4KiB,1MiB --paths kernel,copy-engine",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := f.options()
			if err != nil {
				return err
			}
			return benchCopy(cmd, &f, o)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.device, "device", string(kvlane.Auto), "auto, sim or cuda")
	fl.IntVar(&f.index, "device-index", 0, "which device of the driver")
	fl.StringSliceVar(&f.sizes, "sizes", nil, "block sizes (default 4KiB,16KiB,64KiB,1MiB)")
	fl.StringSliceVar(&f.paths, "paths", nil, "copy-engine, copy-engine-batch, kernel, auto (default all)")
	fl.Var(sizeValue{&f.run.Bytes}, "bytes", "what a repetition moves; 0 is 512MiB, or 16MiB simulated")
	fl.Var(sizeValue{&f.run.PoolBytes}, "pool", "device memory over which blocks are scattered; 0 is 2GiB, or 64MiB simulated")
	fl.Var(sizeValue{&f.run.ReferenceBytes}, "large", "length of the one large copy; 0 is 1GiB, or 32MiB simulated")
	fl.IntVar(&f.run.Reps, "reps", 5, "repetitions of a point; the median counts")
	fl.Uint64Var(&f.run.Seed, "seed", 1, "seed of the permutations")
	fl.BoolVar(&f.run.Paged, "paged", false, "submit page lists in place of lists of extents")
	fl.BoolVar(&f.json, "json", false, "print one JSON object")
	fl.BoolVar(&f.csv, "csv", false, "print the bandwidths as CSV")
	return cmd
}

func (f *benchFlags) options() (bench.Options, error) {
	o := f.run
	if f.json && f.csv {
		return o, usagef("--json and --csv exclude each other")
	}
	if o.Reps < 1 {
		return o, usagef("--reps %d: at least one repetition is needed", o.Reps)
	}
	for _, text := range f.sizes {
		var n int64
		if err := (sizeValue{&n}).Set(text); err != nil {
			return o, usagef("--sizes: %w", err)
		}
		o.Sizes = append(o.Sizes, n)
	}
	for _, name := range f.paths {
		p, err := parsePath(name)
		if err != nil {
			return o, usagef("--paths: %w", err)
		}
		o.Paths = append(o.Paths, p)
	}
	return o, nil
}

func benchCopy(cmd *cobra.Command, f *benchFlags, o bench.Options) (err error) {
	dev, note, err := kvlane.OpenDevice(kvlane.DeviceConfig{Driver: kvlane.Driver(f.device), Index: f.index})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	if note != "" {
		fmt.Fprintln(cmd.ErrOrStderr(), note)
	}
	var bar *progressbar.ProgressBar
	o.Progress = func(done, total int, what string) {
		if bar == nil {
			bar = progressbar.NewOptions(total, progressbar.OptionSetWriter(cmd.ErrOrStderr()), progressbar.OptionClearOnFinish(),
				progressbar.OptionSetWidth(30), progressbar.OptionSetVisibility(replay.Terminal(cmd.ErrOrStderr())))
		}
		bar.Describe(what)
		_ = bar.Set(done) // a bar that cannot be drawn is no reason to stop
	}
	open := func(p stream.Path) (stream.Stream, error) { return streamcopy.Open(dev, streamcopy.Options{Path: p}) }
	r, err := bench.Run(cmd.Context(), dev, open, o)
	if bar != nil {
		_ = bar.Finish() // as above
	}
	if err != nil {
		return err
	}
	r.Machine.Command = strings.Join(os.Args, " ")
	switch {
	case f.json:
		return writeJSON(cmd, r)
	case f.csv:
		return r.WriteCSV(cmd.OutOrStdout())
	}
	return r.WriteText(cmd.OutOrStdout())
}
