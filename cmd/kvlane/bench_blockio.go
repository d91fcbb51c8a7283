package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/bench/blocks"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/internal/unwind"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

// benchBlockio are the flags of a benchmark of block servers.
type benchBlockio struct {
	run    blocks.Options
	remote bool
	device string
	rdma   rdmaFlags
	sizes  []string
	json   bool
	out    string
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

With --rdma there are two more, for a client whose memory the server writes by RDMA, one piece a call:

  rdma     to pinned host memory
  device   to device memory, for pieces of at least 64KiB; a copy in pinned memory is summed

Every piece is summed where it arrives; wrong bytes fail the run. CPU time and allocations are those of both sides. Ctrl-C ends a run early and
prints the results so far.`,
		Example: `  kvlane bench blockio
  kvlane bench blockio --sizes 4KiB,2MiB --depth 64 --duration 2s --json
  kvlane bench blockio --rdma --rdma-provider soft --device sim`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.measure(cmd) },
	}
	fl := cmd.Flags()
	fl.StringSliceVar(&f.sizes, "sizes", nil, "piece sizes, comma-separated, at most 8MiB (default 4KiB,64KiB,2MiB)")
	fl.IntSliceVar(&f.run.Depths, "depth", nil, "requests in progress, comma-separated (default 1,64)")
	fl.IntVar(&f.run.Rounds, "rounds", 5, "interleaved rounds")
	fl.DurationVar(&f.run.Duration, "duration", 500*time.Millisecond, "measuring time of a subject in each round")
	fl.BoolVar(&f.remote, "rdma", false, "measure clients that use RDMA too")
	registerDevice(fl, &f.device)
	f.rdma.registerNICs(fl)
	fl.BoolVar(&f.json, "json", false, "print one JSON object")
	fl.StringVar(&f.out, "out", "", "also write the JSON object to this file")
	return cmd
}

func (f *benchBlockio) measure(cmd *cobra.Command) (err error) {
	sizes, err := parseSizes("sizes", f.sizes)
	f.run.Sizes = sizes
	f.run.SetDefaults()
	if err := errors.Join(err, f.run.Validate()); err != nil {
		return &usageError{err}
	}
	if err := checkOutput(f.out); err != nil {
		return err
	}
	what, done, err := f.openFabric()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done(context.WithoutCancel(cmd.Context()))) }()
	progress, finish := drawProgress(cmd)
	f.run.Progress = progress
	r, err := blocks.Run(cmd.Context(), f.run)
	finish()
	return printMeasured(cmd.Context(), r, err, func() error {
		r.Command, r.Fabric = commandLine(), what
		return outputReport(cmd, r, f.json, f.out)
	})
}

// openFabric opens the device and the NIC of the subjects that use RDMA, and returns a text that
// describes them. Without --rdma there are none. done closes them.
func (f *benchBlockio) openFabric() (what string, done func(context.Context) error, err error) {
	closers := unwind.New()
	if f.remote {
		if what, err = f.tryFabric(&closers); err != nil {
			return "", nil, errors.Join(err, closers.Undo(context.Background(), closeTimeout))
		}
	}
	return what, func(ctx context.Context) error { return closeWithin(ctx, closers.Close) }, nil
}

func (f *benchBlockio) tryFabric(closers *unwind.Stack) (string, error) {
	dev, domains, what, err := openFabric(closers, f.device, 0, &f.rdma)
	if err != nil {
		return "", err
	}
	copies, err := streamcopy.Open(dev, streamcopy.Options{})
	if err != nil {
		return "", err
	}
	closers.Add("stream", copies.Close)
	client, server := domains[0], domains[1]
	f.run.Fabric = &blocks.Fabric{
		Device: dev, Copies: copies, Flush: client.Flush,
		Client: blocks.NIC{Registry: client.NIC, Connect: client.Connect}, Server: blocks.NIC{Registry: server.NIC, Connect: server.Connect},
	}
	return what, nil
}

// openFabric opens a device and two trust domains of a NIC that reaches its memory, and returns a
// text that describes them. closers closes them, also after an error.
func openFabric(closers *unwind.Stack, driver string, index int, nics *rdmaFlags) (dev device.Device, domains [2]*gdr.Domain, what string, err error) {
	c, err := nics.config()
	if err != nil {
		return nil, domains, "", err
	}
	dev, err = openDevice(driver, index, sim.Options{HostAddresses: !nics.soft()}) // hardware NICs need them
	if err != nil {
		return nil, domains, "", err
	}
	closers.AddPlain("device", dev.Close)
	n, err := gdr.Open(dev, c, nil)
	if err != nil {
		return nil, domains, "", asUsage(fmt.Errorf("open NIC: %w", err))
	}
	closers.Add("NICs", n.Close)
	for i := range domains {
		if domains[i], err = n.OpenDomain(); err != nil {
			return nil, domains, "", err
		}
		closers.AddPlain("NIC", domains[i].Close)
	}
	return dev, domains, fmt.Sprintf("%s, NIC %s: %s", dev.Info().Name, domains[0].NIC.Name(), domains[0].Reason), nil
}
