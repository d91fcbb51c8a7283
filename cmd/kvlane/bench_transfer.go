package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane/bench/transfer"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/stream"
)

// Roles in a benchmark of transfers.
const (
	modeInitiator = "initiator"
	modeTarget    = "target"
)

// benchTransfer are the flags of a benchmark of transfers.
type benchTransfer struct {
	serve   serveFlags
	mode    string
	segment string
	op      string
	sizes   []string
	lanes   int
	run     transfer.Options
	json    bool
	nixl    bool
	out     string
}

func newBenchTransferCommand() *cobra.Command {
	f := benchTransfer{serve: serveFlags{bufferBytes: 1 << 30}}
	cmd := &cobra.Command{
		Use:   "transfer",
		Short: "Measure reads and writes of another process's memory",
		Long: `transfer measures how fast blocks move between the memory of two processes, on one host or two. Use it when engines for prefill and decode are
connected, or share a cache. One process offers memory, a segment (--mode target, like "kvlane transfer serve"). The other reads or
writes it in batches of blocks, by several threads, and measures (--mode initiator).

--protocol mooncake is the protocol of Mooncake's engine. Mooncake's transfer_engine_bench may be either side, and its flags are accepted
(--segment_id, --metadata_server, --local_server_name, --block_size and so on). --protocol auto is kvlane's own protocol with any path that
works; nvlink, shm, rdma and tcp use one path. --use-vram uses memory of a GPU.

The table has the parts of a batch's time as in nixlbench: prep writes the list of its blocks, post submits it, tx is the rest. --nixl prints
nixlbench's columns. Below the table is the result line of transfer_engine_bench, for all points. Each block size is measured with each batch
size, for --duration. --budget shortens that where needed, and points that do not fit are left out and named. Ctrl-C ends a run early and
prints the results so far. --check compares all bytes outside the measured time.`,
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
	fl.StringVar(&f.mode, "mode", modeInitiator, "initiator (measures) or target (offers memory)")
	f.serve.register(cmd, protocols)
	fl.Var(sizeValue{&f.serve.bufferBytes}, "buffer-size", "bytes of memory of the target or the initiator")
	f.serve.registerServe(cmd)
	fl.StringVar(&f.segment, "segment", "", "name of the target's segment; required by the initiator")
	fl.StringVar(&f.op, "operation", string(transfer.Read), "direction: read or write")
	fl.StringSliceVar(&f.sizes, "block-size", nil, "block sizes, comma-separated (default 64KiB)")
	fl.IntSliceVar(&f.run.Batches, "batch-size", []int{128}, "blocks per batch, comma-separated")
	fl.IntVar(&f.run.Threads, "threads", 12, "threads, each with one batch at a time")
	f.run.Duration = 10 * time.Second
	fl.Var(secondsValue{&f.run.Duration}, "duration", "measuring time per block size and batch size; a plain number is in seconds")
	fl.IntVar(&f.lanes, "lanes", 0, "connections that carry batches; 0 is the protocol's default")
	fl.BoolVar(&f.run.Check, "check", false, "compare all bytes of every batch")
	fl.DurationVar(&f.run.Budget, "budget", 0, "duration of the run, set-up included; shortens --duration if needed; 0 is no limit")
	fl.DurationVar(&f.run.Timeout, "timeout", time.Minute, "duration of a batch after which the run fails")
	fl.BoolVar(&f.json, "json", false, "print one JSON object")
	fl.BoolVar(&f.nixl, "nixl", false, "print the columns of nixlbench")
	fl.StringVar(&f.out, "out", "", "also write the JSON object to this file")
	cmd.MarkFlagsMutuallyExclusive("json", "nixl")
	return cmd
}

// fieldNames maps flag names of Mooncake's transfer_engine_bench to flags of this command.
func fieldNames(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	name = strings.ReplaceAll(name, "_", "-")
	if own := map[string]string{"segment-id": "segment", "metadata-server": "metadata", "local-server-name": "name"}[name]; own != "" {
		name = own
	}
	return pflag.NormalizedName(name)
}

// secondsValue is a duration flag. A number without a unit is in seconds.
type secondsValue struct{ *time.Duration }

// Set parses a duration.
func (v secondsValue) Set(text string) (err error) {
	if _, number := strconv.ParseFloat(text, 64); number == nil {
		text += "s"
	}
	*v.Duration, err = time.ParseDuration(text)
	return err
}

// String returns the duration as text.
func (v secondsValue) String() string {
	if v.Duration == nil {
		return "0s"
	}
	return v.Duration.String()
}

// Type returns the type name for help texts.
func (v secondsValue) Type() string { return "duration" }

// parse parses the flags that are kept as text.
func (f *benchTransfer) parse() error {
	o := &f.run
	o.Op = transfer.Op(f.op)
	if err := oneOf("operation", f.op, string(transfer.Read), string(transfer.Write)); err != nil {
		return err
	}
	var err error
	if o.BlockBytes, err = parseSizes("block-size", f.sizes); err != nil {
		return &usageError{err}
	}
	switch {
	case f.segment == "":
		return usagef("--segment is required")
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
		return usagef("--buffer-size: the largest point needs %d bytes here, %d are given", need, f.serve.bufferBytes)
	}
	return nil
}

// measure runs the benchmark as the initiator.
func (f *benchTransfer) measure(cmd *cobra.Command) (err error) {
	f.run.Began = time.Now()
	if err := f.parse(); err != nil {
		return err
	}
	if err := checkOutput(f.out); err != nil {
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
			return printMeasured[transfer.Report](cmd.Context(), nil, asUsage(err), nil)
		}
		defer func() { err = errors.Join(err, m.Close()) }()
		return f.carry(cmd, m)
	})
}

// carry measures a driver and prints the report.
func (f *benchTransfer) carry(cmd *cobra.Command, d transfer.Driver) error {
	f.run.Driver = d
	progress, finish := drawProgress(cmd)
	f.run.Progress, f.run.Notice = progress, noticeOn(cmd)
	r, err := transfer.Run(cmd.Context(), f.run)
	finish()
	return printMeasured(cmd.Context(), r, asUsage(err), func() error { return f.print(cmd, r) })
}

// print prints the report in the selected form, and writes the file.
func (f *benchTransfer) print(cmd *cobra.Command, r *transfer.Report) (err error) {
	r.Command = commandLine()
	switch {
	case f.json:
		err = writeJSON(cmd, r)
	case f.nixl:
		err = r.WriteNIXL(cmd.OutOrStdout())
	default:
		err = r.WriteText(cmd.OutOrStdout())
	}
	if err == nil && f.out != "" {
		err = writeFile(f.out, r)
	}
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}
