package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane/bench/chart"
	"github.com/kvlane/kvlane/bench/transfer"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/stream"
)

// The sides of a benchmark of transfers.
const (
	modeInitiator = "initiator"
	modeTarget    = "target"
)

// benchTransfer is what the command line says of a benchmark of transfers.
type benchTransfer struct {
	serve   serveFlags
	mode    string
	segment string
	op      string
	sizes   []string
	lanes   int
	run     transfer.Options
	json    bool
	out     string
	charts  string
}

func newBenchTransferCommand() *cobra.Command {
	f := benchTransfer{serve: serveFlags{bufferBytes: 1 << 30}}
	cmd := &cobra.Command{
		Use:   "transfer",
		Short: "Measure batches of reads and writes of another process's memory",
		Long: `transfer measures batches of blocks that several threads read from a segment of another process, or write to it: --mode target offers one, as
"kvlane transfer serve" does, --mode initiator measures. By Mooncake's protocol either side may be Mooncake's engine and its transfer_engine_bench,
whose flags are taken too (--segment_id, --metadata_server, --local_server_name, --block_size and so on). --protocol auto is kvlane's own: nvlink, shm,
rdma and tcp have all bytes go by that path. With --use-vram either side has memory of a GPU, by either protocol.

The table has nixlbench's columns: Prep writes the list of a batch's blocks, Post submits it, Tx is from there until it is done. Several block sizes and
batch sizes are measured one after the other. With --check every batch's bytes are compared, outside of what is timed.`,
		Example: `  kvlane bench transfer --mode target --protocol mooncake --metadata P2PHANDSHAKE --name 127.0.0.1:15995 --buffer-size 64MiB
  kvlane bench transfer --mode initiator --protocol mooncake --metadata P2PHANDSHAKE --segment 127.0.0.1:15995 --threads 2 --batch-size 8 --duration 1s
  kvlane bench transfer --segment 127.0.0.1:15995 --operation write --block-size 4KiB,1MiB --batch-size 1,8 --threads 2 --budget 10s --check --json`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := oneOf("mode", f.mode, modeInitiator, modeTarget); err != nil {
				return err
			}
			if f.mode == modeTarget {
				return f.serve.serve(cmd)
			}
			return f.measure(cmd)
		},
	}
	cmd.Flags().SetNormalizeFunc(fieldNames)
	fl := cmd.Flags()
	fl.StringVar(&f.mode, "mode", modeInitiator, "initiator, which measures, or target, which offers memory")
	f.serve.register(cmd, protocols)
	fl.Var(sizeValue{&f.serve.bufferBytes}, "buffer-size", "memory: what the target offers, or what the initiator has")
	f.serve.registerServe(cmd)
	fl.StringVar(&f.segment, "segment", "", "the target's segment")
	fl.StringVar(&f.op, "operation", string(transfer.Read), "read or write")
	fl.StringSliceVar(&f.sizes, "block-size", nil, "block sizes (default 64KiB)")
	fl.IntSliceVar(&f.run.Batches, "batch-size", []int{128}, "blocks of a batch")
	fl.IntVar(&f.run.Threads, "threads", 12, "threads, each with a batch at a time")
	f.run.Duration = 10 * time.Second
	fl.Var(secondsValue{&f.run.Duration}, "duration", "how long each point is measured; a number alone is seconds")
	fl.IntVar(&f.lanes, "lanes", 0, "connections that carry batches; 0 is the protocol's default")
	fl.BoolVar(&f.run.Check, "check", false, "compare every batch's bytes")
	fl.DurationVar(&f.run.Budget, "budget", 0, "how long the run takes in all, set-up included: points are measured for less than --duration where needed; 0: no limit")
	fl.DurationVar(&f.run.Timeout, "timeout", time.Minute, "how long a batch may take")
	fl.BoolVar(&f.json, "json", false, "print one JSON object")
	fl.StringVar(&f.out, "out", "", "also write the JSON object to a file")
	fl.StringVar(&f.charts, "charts", "", "also write charts, SVG and PNG, into a folder")
	return cmd
}

// fieldNames takes the names that flags have in transfer_engine_bench.
func fieldNames(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	name = strings.ReplaceAll(name, "_", "-")
	if own := map[string]string{"segment-id": "segment", "metadata-server": "metadata", "local-server-name": "name"}[name]; own != "" {
		name = own
	}
	return pflag.NormalizedName(name)
}

// secondsValue is a flag that holds a time, written as in Go or as seconds.
type secondsValue struct{ *time.Duration }

// Set reads a time.
func (v secondsValue) Set(text string) (err error) {
	if _, number := strconv.ParseFloat(text, 64); number == nil {
		text += "s"
	}
	*v.Duration, err = time.ParseDuration(text)
	return err
}

// String writes the time.
func (v secondsValue) String() string {
	if v.Duration == nil {
		return "0s"
	}
	return v.Duration.String()
}

// Type names the flag's value in help texts.
func (v secondsValue) Type() string { return "duration" }

// parse reads what is still text.
func (f *benchTransfer) parse() error {
	o := &f.run
	o.Op, o.BlockBytes = transfer.Op(f.op), nil
	if err := oneOf("operation", f.op, string(transfer.Read), string(transfer.Write)); err != nil {
		return err
	}
	for _, text := range f.sizes {
		var n int64
		if err := (sizeValue{&n}).Set(text); err != nil {
			return usagef("--block-size: %w", err)
		}
		o.BlockBytes = append(o.BlockBytes, n)
	}
	switch {
	case f.segment == "":
		return usagef("--segment is needed")
	case o.Threads < 1 || o.Duration <= 0 || o.Timeout <= 0:
		return usagef("--threads %d, --duration %v, --timeout %v: all must be positive", o.Threads, o.Duration, o.Timeout)
	case f.lanes < 0 || f.lanes > 256:
		return usagef("--lanes %d is not 0 to 256", f.lanes)
	}
	o.SetDefaults()
	if err := o.Validate(); err != nil {
		return &usageError{err}
	}
	if _, need := o.NeedBytes(); need > f.serve.bufferBytes {
		return usagef("--buffer-size: the largest point takes %d bytes here, and %d are given", need, f.serve.bufferBytes)
	}
	return nil
}

// measure measures as an initiator, and closes all once it is done.
func (f *benchTransfer) measure(cmd *cobra.Command) (err error) {
	f.run.Began = time.Now()
	if err := f.parse(); err != nil {
		return err
	}
	if err := checkOutputs(f.out, f.charts); err != nil {
		return err
	}
	path, own, err := f.serve.native()
	if err != nil {
		return err
	}
	if own {
		return f.measureNative(cmd, path)
	}
	d, err := f.serve.directory()
	if err != nil {
		return err
	}
	return f.serve.memory.open(func(dev device.Device, s stream.Stream) (err error) {
		m, err := transfer.OpenMooncake(cmd.Context(), transfer.MooncakeOptions{
			Directory: d, Segment: f.segment, LocalBytes: f.serve.bufferBytes, Lanes: f.lanes, Device: dev, Copy: s,
		})
		if err != nil {
			return asUsage(err)
		}
		defer func() { err = errors.Join(err, m.Close()) }()
		return f.carry(cmd, m)
	})
}

// carry measures a driver.
func (f *benchTransfer) carry(cmd *cobra.Command, d transfer.Driver) error {
	f.run.Driver = d
	progress, finish := drawProgress(cmd)
	f.run.Progress, f.run.Notice = progress, noticeOn(cmd)
	r, err := transfer.Run(cmd.Context(), f.run)
	finish()
	return printMeasured(cmd.Context(), r, asUsage(err), func() error { return f.print(cmd, r) })
}

// print prints the report in the form asked for, and writes the files.
func (f *benchTransfer) print(cmd *cobra.Command, r *transfer.Report) (err error) {
	r.Command = commandLine()
	if f.json {
		err = writeJSON(cmd, r)
	} else {
		err = r.WriteText(cmd.OutOrStdout())
	}
	if err == nil && f.out != "" {
		err = writeFile(f.out, r)
	}
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if f.charts == "" {
		return nil
	}
	files, err := chart.WriteTransfers(f.charts, r)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%d charts are in %s\n", len(files), f.charts)
	return nil
}
