package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/stream"
)

func (f *benchFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	registerDevice(fl, &f.device)
	fl.IntVar(&f.index, "device-index", 0, "index of the device, from 0")
	fl.IntVar(&f.peer, "peer-index", -1, "index of a second device; also measures copies between the two; -1 is off")
	fl.BoolVar(&f.run.Full, "full", false, "measure all sizes and counts, in 8 minutes")
	fl.StringSliceVar(&f.sizes, "sizes", nil, "block sizes, comma-separated, such as 4KiB,1MiB (default 256 B to 16 MiB)")
	fl.IntSliceVar(&f.run.Counts, "counts", nil, "numbers of blocks, comma-separated (default as many as --bytes allows, and from 1 for blocks of 4 KiB)")
	fl.StringSliceVar(&f.paths, "paths", nil, "subject of the measurement: "+strings.Join(contenderNames(), ", ")+" (default all but auto:latency, auto:balanced and auto:background; nic-soft in place of nic with --rdma-provider soft)")
	fl.StringArrayVar(&f.left, "without", nil, "a path that auto must not choose; repeatable")
	fl.StringSliceVar(&f.directions, "directions", nil, "directions: h2d (host to device), d2h (device to host), both at once (default all)")
	fl.StringSliceVar(&f.layouts, "host", nil, "placement of blocks in host memory: contiguous, scattered, or slots (contiguous within scattered slots, as in a store) (default all)")
	fl.Var(sizeValue{&f.run.SlotBytes}, "slot", "bytes of a slot of --host slots; 0 is 256KiB")
	fl.IntVar(&f.run.BatchBlocks, "batch", 32768, "most blocks per batch; more are split into several batches")
	fl.Var(sizeValue{&f.run.Bytes}, "bytes", "most bytes of a repetition in each direction; 0 is 512MiB, 4GiB with --full, or 4MiB simulated")
	fl.Var(sizeValue{&f.run.PoolBytes}, "pool", "bytes of GPU memory over which blocks are scattered; 0 is 2GiB, or 64MiB simulated")
	fl.Var(sizeValue{&f.run.ReferenceBytes}, "large", "bytes of the one large copy; 0 is 256MiB, or 4MiB simulated")
	fl.IntVar(&f.run.Reps, "reps", 0, "repetitions of each point (default as many as --budget allows)")
	fl.DurationVar(&f.run.Budget, "budget", 0, "duration of the run, set-up included; points that do not fit are omitted; 0 is 2m, 8m with --full, or 30s simulated, and more with further measurements")
	fl.Uint64Var(&f.run.Seed, "seed", 1, "seed of the random placement of blocks")
	fl.BoolVar(&f.lists, "lists", false, "submit batches as lists of extents, not as page lists")
	fl.BoolVar(&f.sums, "sums", false, "compute checksums during the copy; requires page lists")
	fl.BoolVar(&f.highPriority, "high-priority", false, "copy on queues of the GPU's highest priority")
	fl.StringVar(&f.profileDir, "profile-dir", "", usageOf("profile-dir"))

	f.rdma.registerNICs(fl)
	registerSettings(fl, "rdma-queue-pairs")

	fl.BoolVar(&f.json, "json", false, "print one JSON object")
	fl.StringVar(&f.out, "out", "", "also write the JSON object to this file")
	fl.StringVar(&f.from, "from", "", "do not measure; print the JSON object of an earlier run")
	f.comparing.register(fl)
}

// dropRepeated removes duplicates from the lists of a benchmark, so that nothing is measured twice.
func dropRepeated(cmd *cobra.Command) error {
	if !within(cmd, []string{"bench"}) {
		return nil
	}
	var errs []error
	cmd.Flags().Visit(func(f *pflag.Flag) {
		list, ok := f.Value.(pflag.SliceValue)
		if !ok {
			return
		}
		var once []string
		for _, v := range list.GetSlice() {
			once = appendOnce(once, v)
		}
		errs = append(errs, list.Replace(once))
	})
	return errors.Join(errs...)
}

func contenderNames() []string {
	var names []string
	for _, c := range bench.Contenders() {
		names = append(names, c.Name())
	}
	return names
}

// parse parses the flags that are kept as text into f.run.
func (f *benchFlags) parse(cmd *cobra.Command) error {
	o := &f.run
	if cmd.Flags().Changed("reps") && o.Reps < 1 {
		return usagef("--reps %d: at least one repetition is needed", o.Reps)
	}
	var err error
	if o.Sizes, err = parseSizes("sizes", f.sizes); err != nil {
		return &usageError{err}
	}
	for _, name := range f.paths {
		c, err := bench.ParseContender(name)
		if err != nil {
			return usagef("--paths: %w", err)
		}
		o.Contenders = append(o.Contenders, c)
	}
	for _, name := range f.left {
		p, err := stream.ParsePath(name)
		if err != nil || p.MovedBy() != stream.MovedByDevice {
			words, _ := offers["without"](nil, nil, "")
			return usagef("--without: unknown path %q: must be one of %s", name, strings.Join(words, ", "))
		}
		f.without = append(f.without, p)
	}
	for _, name := range f.directions {
		d := bench.Direction(name)
		if !slices.Contains([]bench.Direction{bench.ToDevice, bench.ToHost, bench.Both}, d) {
			return usagef("--directions %q: must be h2d, d2h or both", name)
		}
		o.Directions = append(o.Directions, d)
	}
	for _, name := range f.layouts {
		l, err := parseLayout(name)
		if err != nil {
			return err
		}
		o.Layouts = append(o.Layouts, l)
	}
	switch {
	case f.sums && f.lists:
		return usagef("--sums requires page lists: omit --lists")
	case f.sums:
		o.Form = bench.PagesSummed
	case f.lists:
		o.Form = bench.Lists
	}
	return f.comparing.check()
}

func parseLayout(name string) (bench.Layout, error) {
	l := bench.Layout("host " + name)
	if !slices.Contains([]bench.Layout{bench.HostContiguous, bench.HostScattered, bench.HostSlots}, l) {
		return "", usagef("--host %q: must be contiguous, scattered or slots", name)
	}
	return l, nil
}

// parsePercent parses a percentage (10%) or a fraction (0.1). An empty text is zero.
func parsePercent(s string) (float64, error) {
	if s == "" {
		return 0, nil
	}
	digits, percent := strings.CutSuffix(strings.TrimSpace(s), "%")
	v, err := strconv.ParseFloat(digits, 64)
	if err != nil || !(v >= 0) || math.IsInf(v, 0) {
		return 0, fmt.Errorf("%q is not a share such as 10%% or 0.1", s)
	}
	if percent {
		v /= 100
	}
	return v, nil
}
