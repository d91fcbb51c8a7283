package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

func newBenchCommand() *cobra.Command {
	cmd := newGroupCommand("bench", "Measure this machine's paths", `bench measures how fast this machine moves KV cache: requests to the store (store), copies between host and GPU by each path and NIC (copy),
reads and writes of files (file), reads and writes of another process's memory (transfer), and retrieves from a block server (blockio).`)
	cmd.AddCommand(newBenchStoreCommand(), newBenchCopyCommand(), newBenchFileCommand(), newBenchTransferCommand(), newBenchBlockioCommand())
	return cmd
}

// benchFlags are the flags of a copy benchmark. Some are kept as text until they are parsed.
type benchFlags struct {
	device              string
	index, peer         int
	sizes, paths        []string
	left                []string
	without             []stream.Path // parsed from left
	directions, layouts []string
	run                 bench.Options
	json                bool
	out, from           string
	comparing           comparing
	lists, sums         bool
	profileDir          string
	highPriority        bool
	rdma                rdmaFlags
}

func newBenchCopyCommand() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "copy",
		Short: "Measure copies of scattered blocks between host and GPU, by path",
		Long: `copy measures how fast KV cache blocks are copied between the memory of the host and of a GPU, by each copy path and block size. Use it to
choose a block size or a layout, or to compare machines and versions.

Blocks are scattered over the GPU's memory. The host's memory is pinned. Each path copies to the GPU, to the host and in both directions at
once. References of the same run are one large copy (C), one call of the driver for each block (one-copy-each), and the driver's batched copy
of at most 256 blocks a call (driver-batch). auto is kvlane's own choice. --without excludes a path from it; two such runs show the gain of
that path. All paths are measured in interleaved rounds with large copies in between. All bytes are compared; wrong bytes fail the run.

A run takes two minutes on a GPU, and at most about --budget including its set-up. --full measures 256 B to 16 MiB and 1 to 100,000 blocks, at
most 4 GiB at a time. Points that do not fit are left out and named. Slow points move fewer blocks than their column says, and are marked.
Ctrl-C ends a run early and prints the results so far.

--peer-index also measures copies between two GPUs.
"kvlane bench store --beside-matmul" measures how much loads and dumps slow down a computation on the GPU.

RDMA NICs are connected to themselves: nic is a stream of copies over them, nic-channel are requests on the first NIC without a stream.
--rdma-provider soft uses NICs in software instead (nic-soft, nic-soft-channel), one for each name of --nic, and reports them separately.
Results of the simulated device are marked.`,
		Example: `  kvlane bench copy --device cuda --sizes 4KiB,1MiB --paths kernel,auto
  kvlane bench copy --out run.json
  kvlane bench copy --compare run.json --fail-above 10%
  kvlane bench copy --rdma-provider soft --nic soft0,soft1 --paths auto,nic-soft,nic-soft-channel`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.parse(cmd); err != nil {
				return err
			}
			return f.benchCopy(cmd)
		},
	}
	f.register(cmd)
	return cmd
}

func (f *benchFlags) benchCopy(cmd *cobra.Command) (err error) {
	f.run.Began = time.Now()
	if err := checkOutput(f.out); err != nil {
		return err
	}
	earlier, err := readReport(cmd.Context(), "--compare", f.comparing.with)
	if err != nil {
		return err
	}
	if f.from != "" {
		r, err := readReport(cmd.Context(), "--from", f.from)
		if err != nil {
			return err
		}
		return f.print(cmd, r, earlier)
	}
	dev, err := openDevice(f.device, f.index, sim.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	r, err := f.measure(cmd, dev)
	return printMeasured(cmd.Context(), r, asUsage(err), func() error {
		r.Machine.Command = commandLine()
		if r.Incomplete != "" {
			earlier = nil
		}
		return f.print(cmd, r, earlier)
	})
}

// printMeasured prints the report after success, interruption, or corrupt data.
func printMeasured[R any](ctx context.Context, r *R, err error, print func() error) error {
	switch {
	case err == nil:
		return print()
	case ctx.Err() == nil || errors.Is(err, errdefs.ErrCorrupt):
		return err
	case r == nil:
		return &interruptedError{"before the first measurement", err}
	}
	if failed := print(); failed != nil {
		return errors.Join(&interruptedError{"and the report could not be printed", err}, failed)
	}
	return &interruptedError{"the report has the earlier measurements", err}
}

// interruptedError is the error of an interrupted run.
type interruptedError struct {
	what string
	err  error
}

func (e *interruptedError) Error() string { return "interrupted: " + e.what }
func (e *interruptedError) Unwrap() error { return e.err }

func commandLine() string {
	return strings.Join(append([]string{filepath.Base(os.Args[0])}, os.Args[1:]...), " ")
}

// measure runs the benchmark with a progress bar.
func (f *benchFlags) measure(cmd *cobra.Command, dev device.Device) (_ *bench.Report, err error) {
	o, ctx := f.run, cmd.Context()
	if err := o.Validate(dev.Info()); err != nil {
		return nil, asUsage(err)
	}
	peer, err := f.openPeer()
	if err != nil {
		return nil, err
	}
	if peer != nil {
		defer func() { err = errors.Join(err, peer.Close()) }()
		o.Peer = peer
	}
	progress, finish := drawProgress(cmd)
	defer finish()
	o.Progress = progress
	o.Notice = noticeOn(cmd)
	profile, source, err := f.profile(ctx, dev)
	if err != nil {
		return nil, err
	}
	nics, err := f.openNICs(dev, func() (stream.Stream, error) {
		// a separate planner, because the contender auto must not learn from these copies
		p, err := f.newPlanner(profile, source)
		if err != nil {
			return nil, err
		}
		return streamcopy.Open(dev, streamcopy.Options{Planner: p})
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, nics.close(ctx)) }()
	nics.use(&o)
	planner, err := f.newPlanner(profile, source)
	if err != nil {
		return nil, err
	}
	r, err := bench.Run(ctx, dev, f.opener(dev, planner, nics), o)
	if r == nil {
		return nil, err
	}
	for _, p := range f.without {
		r.Setup.Without = append(r.Setup.Without, p.String())
	}
	r.Setup.Planner, r.Setup.NICs = source, nics.describe()
	return r, err
}

// noticeOn returns a function that prints a message on standard error.
func noticeOn(cmd *cobra.Command) func(text string) {
	return func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), text) }
}

// drawProgress returns a function that shows the progress of a benchmark, and one that removes it.
func drawProgress(cmd *cobra.Command) (show func(done, total int, what string), finish func()) {
	p := newProgress(cmd.ErrOrStderr(), cmd.Name(), false)
	return func(done, total int, what string) { p.show(int64(done), int64(total), what) }, p.end
}

// openPeer opens the second device, or returns nil if --peer-index names none.
func (f *benchFlags) openPeer() (device.Device, error) {
	if f.peer < 0 {
		return nil, nil //nolint:nilnil // no second device is selected
	}
	peer, err := openDevice(f.device, f.peer, sim.Options{})
	if err != nil {
		return nil, fmt.Errorf("--peer-index: %w", err)
	}
	return peer, nil
}
