package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/profile"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

type calibrateFlags struct {
	device string
	index  int
	opts   profile.Options
	rdma   rdmaFlags
	// fileDirs are the directories to measure instead of the device's copy paths.
	fileDirs []string
	full     bool
	json     bool
}

func newCalibrateCommand() *cobra.Command {
	var f calibrateFlags
	cmd := &cobra.Command{
		Use:   "calibrate",
		Short: "Measure a GPU's copy paths, and show which is chosen for each batch",
		Long: `calibrate measures how long each copy path of a GPU takes, by size, number of copies and direction, and fits a model to the times, by which
the planner chooses each batch's path. The profile is stored per GPU, driver, PCIe link and kernels, and used by all of the user's
processes. It is measured again with --force, or when one of these has changed. With --gdr auto or require NICs are measured too, for a
profile of their own. --device host has one path and measures nothing: it is for --file-dir only.

Measuring takes two seconds and needs the GPU to itself. If the GPU is in use, the command reports the reason and fails, or waits
for up to --wait. A profile that was disturbed during the measurement is shown and not stored, and so is one of the simulated device.
One process of a host measures at a time.

With --file-dir it measures the paths to files instead, for a second per directory. With --device it measures that device's memory too, by
cuFile (direct) and through pinned memory. --direct auto then uses cuFile where that was more than 20% faster. These profiles are stored
per file system, kernel and device. At most a few hundred MiB are written, to a file without a name.`,
		Example: `  kvlane calibrate --device cuda --force
  kvlane calibrate --device cuda --gdr require --nic mlx5_0
  kvlane calibrate --device cuda --file-dir /mnt/nvme0 --file-dir /mnt/nvme1`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return runCalibrate(cmd, &f) },
	}
	fl := cmd.Flags()
	registerDevice(fl, &f.device)
	fl.IntVar(&f.index, "device-index", 0, "index of the device, from 0")
	fl.BoolVar(&f.opts.Force, "force", false, "measure even if a profile is stored")
	fl.DurationVar(&f.opts.Budget, "budget", 2*time.Second, "measuring time; with --file-dir per directory, 1s by default. Each point is measured once even if that takes longer; the check that the GPU is idle is not included")
	fl.DurationVar(&f.opts.Wait, "wait", 0, "longest wait for a GPU that is in use, or for another process that measures")
	fl.Var(sizeValue{&f.opts.Bytes}, "memory", "device memory, and as much pinned memory, to measure with; 0 is 1GiB, or less if less is free")
	fl.StringVar(&f.opts.Dir, "profile-dir", "", usageOf("profile-dir"))
	fl.StringArrayVar(&f.fileDirs, "file-dir", nil, "directory whose file system is measured instead of copy paths; repeatable")
	f.rdma.register(fl)
	fl.BoolVar(&f.full, "full", false, "show every measured figure, and the choices of each policy")
	fl.BoolVar(&f.json, "json", false, "print one JSON object")
	return cmd
}

func runCalibrate(cmd *cobra.Command, f *calibrateFlags) (err error) {
	if f.opts.Budget <= 0 {
		return usagef("--budget %v: must be positive", f.opts.Budget)
	}
	if f.opts.Wait < 0 {
		return usagef("--wait %v: must not be negative", f.opts.Wait)
	}
	if len(f.fileDirs) > 0 {
		return runCalibrateFiles(cmd, f)
	}
	if f.device == string(kvlane.Host) {
		return usagef("--device host has one path and needs no measurement: use it with --file-dir only")
	}
	mode, err := kvlane.ParseGDR(string(f.rdma.gdr()))
	if err != nil {
		return &usageError{err}
	}
	dev, err := openDevice(f.device, f.index, sim.Options{
		HostAddresses: mode != kvlane.GDROff && !f.rdma.soft(), // hardware NICs need them
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	nics, err := f.openNICs(cmd, dev, mode)
	if err != nil {
		return err
	}
	if nics != nil {
		f.opts.NICs = nics
		defer func() {
			ctx, cancel := closing(cmd.Context(), closeTimeout, interruptGrace)
			defer cancel()
			err = errors.Join(err, nics.Close(ctx))
		}()
	}
	calibrated, err := f.calibrate(cmd, dev)
	if err != nil {
		return err
	}
	if calibrated.Note != "" {
		fmt.Fprintln(cmd.ErrOrStderr(), calibrated.Note)
	}
	r, err := newCalibrateReport(calibrated)
	if err != nil {
		return err
	}
	if f.json {
		return writeJSON(cmd, r)
	}
	return r.WriteText(cmd.OutOrStdout(), f.full)
}

// calibrate measures the copy paths and shows the progress.
func (f *calibrateFlags) calibrate(cmd *cobra.Command, dev device.Device) (*profile.Calibrated, error) {
	show, finish := drawProgress(cmd)
	defer finish()
	f.opts.Progress = show
	c, err := profile.Calibrate(cmd.Context(), dev, f.opts)
	return c, asUsage(err)
}

// openNICs opens the NICs to measure, or returns nil. If mode is auto and no NIC can be opened, it
// prints the reason.
func (f *calibrateFlags) openNICs(cmd *cobra.Command, dev device.Device, mode kvlane.GDR) (*gdr.NICs, error) {
	if mode == kvlane.GDROff {
		return nil, nil
	}
	c, err := f.rdma.config()
	if err != nil {
		return nil, err
	}
	nics, err := gdr.Open(dev, c, nil)
	switch {
	case err == nil:
		return nics, nil
	case refused(err):
		return nil, &usageError{err}
	case mode == kvlane.GDRAuto:
		fmt.Fprintln(cmd.ErrOrStderr(), "no NIC is measured: "+errorText(err))
		return nil, nil
	}
	return nil, fmt.Errorf("gdr requires a NIC: %w", err)
}

// calibrateReport is the output of the command.
type calibrateReport struct {
	Profile plan.Profile `json:"profile"`
	File    string       `json:"file"`
	Stored  bool         `json:"stored"`
	// Measured is false if the profile was stored earlier.
	Measured bool            `json:"measured"`
	Millis   int64           `json:"measured_in_ms,omitempty"`
	Bytes    int64           `json:"measured_over_bytes,omitempty"`
	Loaded   string          `json:"gpu_in_use,omitempty"`
	Missing  []missingPath   `json:"missing,omitempty"`
	Choices  []plannedChoice `json:"choices"`
}

type missingPath struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// plannedChoice is the path that the planner chooses for Count scattered copies of Size bytes on an
// idle stream.
type plannedChoice struct {
	Dir    string  `json:"direction"`
	Policy string  `json:"policy"`
	Host   string  `json:"host"`
	Size   int64   `json:"size"`
	Count  int     `json:"count"`
	Path   string  `json:"path"`
	CTAs   int     `json:"ctas"`
	Micros float64 `json:"predicted_us"`
	GBps   float64 `json:"predicted_gbps"`
	Reason string  `json:"reason"`
}

// choiceCounts are the numbers of copies for which choices are shown. The sizes are those of the
// profile.
var choiceCounts = []int{1, 4, 16, 64, 1024, 16384}

func newCalibrateReport(c *profile.Calibrated) (*calibrateReport, error) {
	r := &calibrateReport{Profile: c.Profile, File: c.File, Stored: c.Stored, Measured: c.Result != nil}
	if c.Result != nil {
		r.Millis, r.Bytes, r.Loaded = c.Result.Took.Milliseconds(), c.Result.Bytes, c.Result.Loaded
		for _, m := range c.Result.Missing {
			r.Missing = append(r.Missing, missingPath{m.Path.String(), m.Reason})
		}
	}
	var can plan.Paths
	for i := range c.Profile.Models {
		can = can.With(c.Profile.Models[i].Path)
	}
	can = can.Without(stream.PathNICSoft) // the planner never chooses it
	for goal := plan.Throughput; goal <= plan.Background; goal++ {
		pl, err := plan.New(c.Profile, plan.Options{Policy: plan.Policy{Goal: goal}})
		if err != nil {
			return nil, err
		}
		for _, dir := range []plan.Direction{plan.H2D, plan.D2H} {
			for side := plan.Contiguous; side <= plan.Scattered; side++ {
				r.choices(pl, dir, side, can)
			}
		}
	}
	return r, nil
}

func (r *calibrateReport) choices(pl *plan.Planner, dir plan.Direction, side plan.Side, can plan.Paths) {
	for _, size := range r.Profile.Sizes {
		for _, n := range choiceCounts {
			q := plan.Request{Dir: dir, Pieces: n, Runs: n, HostRuns: n, Bytes: int64(n) * size}
			if side == plan.Contiguous {
				q.HostRuns = 1
			}
			c := pl.Choose(q, can)
			r.Choices = append(r.Choices, plannedChoice{
				Dir: dir.String(), Policy: pl.Policy().Goal.String(), Host: side.String(), Size: size, Count: n,
				Path: c.Path.String(), CTAs: c.CTAs, Micros: float64(c.Predicted) / 1e3, GBps: gbps(q.Bytes, float64(c.Predicted)), Reason: c.Reason,
			})
		}
	}
}

func gbps(bytes int64, nanos float64) float64 {
	if nanos <= 0 {
		return 0
	}
	return float64(bytes) / nanos
}
