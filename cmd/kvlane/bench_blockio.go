package main

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/bench/blocks"
)

// benchBlockio are the flags of a benchmark of block servers.
type benchBlockio struct {
	run   blocks.Options
	sizes []string
	json  bool
	out   string
}

func newBenchBlockioCommand() *cobra.Command {
	var f benchBlockio
	cmd := &cobra.Command{
		Use:   "blockio",
		Short: "Measure retrieves from a block server, and compare with bare sockets",
		Long: `blockio measures how fast pieces of KV cache blocks are retrieved from a block server over TCP. Client and server run in this process and
use the loopback interface. The subjects are measured in interleaved rounds, by piece size and number of requests in progress (depth):

  memory   copies from the server's memory, without a connection
  sockets  bare sockets that pipeline frames of the same bytes, received into the same number of slots
  tcp      a client of the block server, one piece a call, by as many goroutines as the depth
  batch    the same client, one call at a time for as many pieces as the depth

Every piece is summed where it arrives; wrong bytes fail the run. CPU time and allocations are those of both sides. Ctrl-C ends a run early and
prints the results so far.`,
		Example: `  kvlane bench blockio
  kvlane bench blockio --sizes 4KiB,2MiB --depth 64 --duration 2s --json`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.measure(cmd) },
	}
	fl := cmd.Flags()
	fl.StringSliceVar(&f.sizes, "sizes", nil, "piece sizes, comma-separated, at most 8MiB (default 4KiB,64KiB,2MiB)")
	fl.IntSliceVar(&f.run.Depths, "depth", nil, "requests in progress, comma-separated (default 1,64)")
	fl.IntVar(&f.run.Rounds, "rounds", 5, "interleaved rounds")
	fl.DurationVar(&f.run.Duration, "duration", 500*time.Millisecond, "measuring time of a subject in each round")
	fl.BoolVar(&f.json, "json", false, "print one JSON object")
	fl.StringVar(&f.out, "out", "", "also write the JSON object to this file")
	return cmd
}

func (f *benchBlockio) measure(cmd *cobra.Command) error {
	sizes, err := parseSizes("sizes", f.sizes)
	f.run.Sizes = sizes
	f.run.SetDefaults()
	if err := errors.Join(err, f.run.Validate()); err != nil {
		return &usageError{err}
	}
	if err := checkOutput(f.out); err != nil {
		return err
	}
	progress, finish := drawProgress(cmd)
	f.run.Progress = progress
	r, err := blocks.Run(cmd.Context(), f.run)
	finish()
	return printMeasured(cmd.Context(), r, err, func() error {
		r.Command = commandLine()
		return outputReport(cmd, r, f.json, f.out)
	})
}
