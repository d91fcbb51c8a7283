package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/bench/file"
	"github.com/kvlane/kvlane/device/sim"
	streamfile "github.com/kvlane/kvlane/stream/file"
)

// fileBench are the flags of a benchmark of files.
type fileBench struct {
	device             string
	index              int
	sizes              []string
	work, orders, from []string
	run                file.Options
	direct             string
	transfers, queues  int
	json               bool
	out                string
}

func newBenchFileCommand() *cobra.Command {
	var f fileBench
	cmd := &cobra.Command{
		Use:   "file",
		Short: "Measure reads and writes of files, and compare with the disk itself",
		Long: `file measures how fast KV cache blocks are read from a disk and written to it, relative to the disk itself. Use it to choose a disk, a block
size or a path for the file tier.

The disk itself (raw) is the best of pread and pwrite by 1, 4, 16 and 32 threads and of io_uring at depths 8, 32 and 128, by O_DIRECT. It is
compared with all paths to files and with kvlane's own choice (auto), which first measures the directory. All are measured in interleaved
rounds at each place: block size, in sequence or scattered, read or written, and for reads cold or from the page cache, where raw reads
are buffered too. Cold means O_DIRECT, or a file that was dropped from the page cache before each batch. A hypervisor or the disk may
still cache it.

With --device the report begins with one table of reads to the device's memory: by cuFile (direct), through pinned memory (pinned), and raw.

All bytes are compared outside the measured time; wrong bytes fail the run. Two scratch files of --bytes each are in a directory of their own
in --dir, which is removed at the end. --device pins the host's memory by that device, and also measures the device's memory. The report
states whether cuFile used GPUDirect Storage or its compatibility mode, and why.

A run takes a minute, or --budget including its set-up. Places that do not fit are left out and named. Ctrl-C ends a run early and prints the
results so far.`,
		Example: `  kvlane bench file --dir /mnt/nvme
  kvlane bench file --dir /mnt/nvme --device cuda --sizes 4KiB,64KiB,1MiB --out run.json
  kvlane bench file --dir /mnt/nvme --work read --from page-cache --budget 15s --json`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.parse(); err != nil {
				return err
			}
			return f.execute(cmd)
		},
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.StringVar(&f.run.Dir, "dir", "", "folder on the disk to measure; required")
	fl.Var(sizeValue{&f.run.Bytes}, "bytes", "bytes of a scratch file; 0 is 1GiB, or with a --budget below 32s 32MiB per second of it, at least 64MiB")
	fl.StringSliceVar(&f.sizes, "sizes", nil, "block sizes, comma-separated (default 4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB)")
	fl.Var(sizeValue{&f.run.AtOnce}, "at-once", "bytes of a batch, at least 8 blocks; 0 is 64MiB, or 2048 blocks if that is less")
	fl.StringSliceVar(&f.work, "work", nil, "directions: read, write (default both)")
	fl.StringSliceVar(&f.orders, "order", nil, "order of the blocks: sequential, scattered (default both)")
	fl.StringSliceVar(&f.from, "from", nil, "location of the file before a read: cold (on the disk), page-cache (default both)")
	fl.StringVar(&f.device, "device", noDevice, "device whose memory is measured in addition to the host's: none, cuda or sim")
	fl.IntVar(&f.index, "device-index", 0, "index of the device, from 0")
	fl.StringVar(&f.direct, "direct", streamfile.DirectAuto.String(),
		"cuFile for the device's memory: auto, require (fail unless it bypasses host memory), or off")
	fl.IntVar(&f.transfers, "transfers", streamfile.DefaultTransfers, "concurrent transfers of a path")
	fl.IntVar(&f.queues, "cufile-queues", 0, "queues of the GPU for cuFile's transfers; 0 uses one waiting thread per transfer")
	fl.DurationVar(&f.run.Budget, "budget", 0, "duration of the run, set-up included; points that do not fit are omitted; 0 is 1m")
	fl.Uint64Var(&f.run.Seed, "seed", 1, "seed of the random placement of blocks")
	fl.BoolVar(&f.json, "json", false, "print one JSON object")
	fl.StringVar(&f.out, "out", "", "also write the JSON object to this file")
	return cmd
}

// parse parses the flags that are kept as text. The error lists all errors.
func (f *fileBench) parse() error {
	var errs []error
	if !slices.Contains([]string{noDevice, string(kvlane.CUDA), string(kvlane.Sim)}, f.device) {
		errs = append(errs, fmt.Errorf("--device %q: must be none, cuda or sim", f.device))
	}
	if _, err := streamfile.ParseDirect(f.direct); err != nil {
		errs = append(errs, fmt.Errorf("--direct: %w", err))
	}
	if f.transfers < 1 || f.transfers > streamfile.MaxTransfers {
		errs = append(errs, fmt.Errorf("--transfers %d: must be 1 to %d", f.transfers, streamfile.MaxTransfers))
	}
	if f.queues < 0 {
		errs = append(errs, fmt.Errorf("--cufile-queues %d: must be at least 0", f.queues))
	}
	sizes, err := parseSizes("sizes", f.sizes)
	errs = append(errs, err)
	f.run.Sizes = sizes
	for _, text := range f.work {
		f.run.Work = append(f.run.Work, file.Work(text))
	}
	for _, text := range f.orders {
		f.run.Orders = append(f.run.Orders, file.Order(text))
	}
	for _, text := range f.from {
		f.run.From = append(f.run.From, file.From(text))
	}
	if err := errors.Join(append(errs, f.run.Validate())...); err != nil {
		return &usageError{err}
	}
	return nil
}

func (f *fileBench) execute(cmd *cobra.Command) (err error) {
	f.run.Began = time.Now()
	if err := checkOutput(f.out); err != nil {
		return err
	}
	if f.device != noDevice {
		dev, failed := openDevice(f.device, f.index, sim.Options{})
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, dev.Close()) }()
		f.run.Device = dev
	}
	streams := &fileStreams{dir: f.run.Dir, dev: f.run.Device, transfers: f.transfers, queues: f.queues}
	if streams.direct, err = streamfile.ParseDirect(f.direct); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, streams.close()) }()
	f.run.Contenders, f.run.Files = streams.contenders(cmd.Context()), streams.open
	r, err := f.measure(cmd)
	return printMeasured(cmd.Context(), r, asUsage(err), func() error {
		r.Missing = append(r.Missing, streams.missing...)
		r.Machine.Command, r.Setup.CuFile = commandLine(), streams.mode
		return f.print(cmd, r)
	})
}

// measure runs the benchmark with a progress bar.
func (f *fileBench) measure(cmd *cobra.Command) (*file.Report, error) {
	progress, finish := drawProgress(cmd)
	defer finish()
	f.run.Progress = progress
	f.run.Notice = noticeOn(cmd)
	return file.Run(cmd.Context(), f.run)
}

// print prints the report as text or JSON, and writes the file.
func (f *fileBench) print(cmd *cobra.Command, r *file.Report) (err error) {
	if f.json {
		err = writeJSON(cmd, r)
	} else {
		err = r.WriteText(cmd.OutOrStdout())
	}
	if err == nil && f.out != "" {
		err = writeFile(f.out, r)
	}
	return err
}
