package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/bench/rdmabench"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream/copy/measure"
)

// benchRDMA holds the options of "kvlane bench rdma".
type benchRDMA struct {
	device     string
	index      int
	sizes      []string
	iterations int
	budget     time.Duration
	rdma       rdmaFlags
	json       bool

	bytes []int64 // sizes
	rig   measure.Rig
}

func newBenchRDMACommand() *cobra.Command {
	var b benchRDMA
	cmd := &cobra.Command{
		Use:   "rdma",
		Short: "Measure bandwidth and latency of an RDMA NIC, in perftest's columns",
		Long: `rdma shows what an RDMA NIC does by itself, so that it is known what kvlane's transfers could reach: bandwidth and latency of writes, reads and
sends, in the columns of perftest (ib_write_bw, ib_write_lat and so on). Two queue pairs of one NIC are connected to each other. One side is
host memory; the other is host memory too, or with --device a GPU's. Bytes are compared at every size: wrong ones fail the run.

It takes as long as --iterations need, and about --budget at most, if one is given; what does not fit is left out and named. Ctrl-C ends it early,
with what it measured until then.

With --rdma-provider soft the NIC is software, which the report says: such figures say what the software costs.`,
		Example: `  kvlane bench rdma --nic mlx5_0 --device cuda
  kvlane bench rdma --rdma-provider soft --sizes 4KiB,1MiB --iterations 5000 --budget 30s`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := b.parse(); err != nil {
				return err
			}
			return b.execute(cmd)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&b.device, "device", noDevice, "whose memory the other side is: none (the host's), cuda or sim")
	fl.IntVar(&b.index, "device-index", 0, "which device of the driver, from 0")
	fl.StringSliceVar(&b.sizes, "sizes", nil, "bytes of a message, by commas (default 2,64,4KiB,16KiB,64KiB,1MiB)")
	fl.IntVar(&b.iterations, "iterations", rdmabench.DefaultIterations, "messages of each size, for bandwidth and again for latency")
	fl.DurationVar(&b.budget, "budget", 0, "how long the run takes in all, set-up included; what does not fit is left out; 0 is no limit")
	b.rdma.registerNICs(fl, "in software")
	fl.BoolVar(&b.json, "json", false, "print one JSON object")
	return cmd
}

// parse checks the flags, and reads those that are still text.
func (b *benchRDMA) parse() error {
	if !slices.Contains([]string{noDevice, string(kvlane.CUDA), string(kvlane.Sim)}, b.device) {
		return usagef("--device %q: it is none, cuda or sim", b.device)
	}
	var err error
	if b.bytes, err = parseSizes("sizes", b.sizes); err != nil {
		return &usageError{err}
	}
	if len(b.bytes) == 0 {
		b.bytes = rdmabench.DefaultSizes()
	}
	if err := rdmabench.CheckSizes(b.bytes, b.iterations); err != nil {
		return &usageError{err}
	}
	if b.budget < 0 {
		return usagef("--budget %v is negative", b.budget)
	}
	if n := len(b.rdma.nics.NICs); n > 1 {
		return usagef("--nic names %d NICs: one is measured", n)
	}
	return nil
}

// execute opens what is measured, measures it and prints the report.
func (b *benchRDMA) execute(cmd *cobra.Command) (err error) {
	began := time.Now()
	defer func() { err = errors.Join(err, b.rig.Close()) }()
	var dev device.Device
	if b.device != noDevice {
		if dev, err = openDevice(b.device, b.index, sim.Options{}); err != nil {
			return err
		}
		b.rig.OnFree(dev.Close)
	}
	nics, err := gdr.Open(dev, b.rdma.config(), nil)
	if err != nil {
		return asUsage(fmt.Errorf("open NIC: %w", err))
	}
	ctx := cmd.Context()
	b.rig.OnClose(nics.Close)
	local, remote, err := b.memory(dev, nics)
	if err != nil {
		return err
	}
	rails, err := nics.Rails()
	if err != nil {
		return err
	}
	progress, finish := drawProgress(cmd)
	r, err := rdmabench.Run(ctx, rdmabench.Options{
		NIC: rails[0].Registry, Connect: rails[0].Connect, Local: local, Remote: remote, Sizes: b.bytes, Iterations: b.iterations,
		Budget: b.budget, Began: began, Progress: progress, Notice: noticeOn(cmd),
	})
	finish()
	return printMeasured(ctx, r, asUsage(err), func() error {
		r.Reason, r.Command = nics.Choices()[0].Reason, commandLine()
		if dev != nil {
			r.Device, r.Simulated = dev.Info().Name, b.device == string(kvlane.Sim)
		}
		if b.json {
			return writeJSON(cmd, r)
		}
		return r.WriteText(cmd.OutOrStdout())
	})
}

// memory returns memory for the largest messages, which the NIC is told of: twice that of the host, and that of the device or of the host.
func (b *benchRDMA) memory(dev device.Device, nic measure.Memory) (local, remote *mem.Region, err error) {
	most := slices.Max(b.bytes)
	if dev == nil {
		if local, err = b.hostMemory(2 * most); err == nil {
			remote, err = b.hostMemory(most)
		}
	} else if local, err = b.rig.AllocHost(dev, 2*most); err == nil {
		remote, err = b.rig.Alloc(dev, most)
	}
	if err == nil {
		err = b.rig.Register(nic, local, remote)
	}
	return local, remote, err
}

func (b *benchRDMA) hostMemory(bytes int64) (*mem.Region, error) {
	m, err := hostmem.Alloc(bytes)
	if err != nil {
		return nil, err
	}
	b.rig.OnFree(func() error { return hostmem.Free(m) })
	return hostmem.Region(m)
}
