package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/bench/calls"
	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/internal/unwind"
	"github.com/kvlane/kvlane/rpc"
)

// rpcBench are the flags of a benchmark of calls.
type rpcBench struct {
	run                 calls.Options
	bodies, attachments []string
	credentials         rpcCredentials
	rdma                rpcRDMA
	beside              string
	json                bool
	out                 string
}

func newRPCBenchCommand() *cobra.Command {
	var f rpcBench
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure echo calls, and compare with bare sockets",
		Long: `bench measures calls of example.EchoService by a number of callers over one connection, with messages (--sizes) or attachments (--attachments).
Without --addr, client and server run in this process, use the loopback interface, and are compared with bare sockets (sockets) in interleaved
rounds. Bare sockets return frames of the same bytes. Short frames are pipelined on one connection; otherwise each caller has a connection.

With --rdma a client and a server by RDMA are measured too (rdma). With --gpu there are two more subjects for attachments in memory of the device:
received into blocks of it (rdma-gpu), and placed directly from and to it (direct). With --beside messages are also measured on connections with device
memory: alone (rdma-gpu), and while another call moves that many bytes by blocks (beside-blocks) or directly (beside-direct).

All bytes of the first responses are compared, and the lengths of the others; wrong bytes fail the run. CPU time and allocations are those of
this process. Ctrl-C ends a run early and prints the results so far.`,
		Example: `  kvlane rpc bench
  kvlane rpc bench --callers 1,8 --attachments 64KiB,1MiB --duration 2s --json
  kvlane rpc bench --rdma --gpu --rdma-provider soft --device sim --callers 8 --attachments 1MiB
  kvlane rpc bench --rdma --gpu --rdma-provider soft --device sim --callers 1 --beside 16MiB
  kvlane rpc bench --addr 127.0.0.1:8000 --sizes 4KiB`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.measure(cmd) },
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.StringVar(&f.run.Address, "addr", "", "HOST:PORT or unix:PATH of an echo server (default: one in this process)")
	fl.IntSliceVar(&f.run.Callers, "callers", nil, "calls in progress, comma-separated (default 8,32)")
	fl.StringSliceVar(&f.bodies, "sizes", nil, "message sizes, comma-separated (default 4KiB, without --attachments)")
	fl.StringSliceVar(&f.attachments, "attachments", nil, "attachment sizes, comma-separated")
	fl.IntVar(&f.run.Rounds, "rounds", 5, "interleaved rounds")
	fl.DurationVar(&f.run.Duration, "duration", 500*time.Millisecond, "measuring time of a subject in each round")
	fl.DurationVar(&f.run.Timeout, "timeout", 10*time.Second, "limit of the time of calls after the end of a round")
	f.credentials.register(fl)
	fl.BoolVar(&f.rdma.on, "rdma", false, "measure calls by RDMA too")
	fl.BoolVar(&f.rdma.gpu, "gpu", false, "with --rdma: measure attachments in device memory too")
	fl.StringVar(&f.beside, "beside", "", "with --gpu: length of transfers beside which messages are measured too")
	f.rdma.registerDevice(fl)
	f.rdma.nics.registerNICs(fl)
	fl.BoolVar(&f.json, "json", false, "print one JSON object")
	fl.StringVar(&f.out, "out", "", "also write the JSON object to this file")
	return cmd
}

func (f *rpcBench) measure(cmd *cobra.Command) (err error) {
	bodies, err := parseSizes("sizes", f.bodies)
	attachments, otherErr := parseSizes("attachments", f.attachments)
	f.run.Bodies, f.run.Attachments = bodies, attachments
	f.run.SetDefaults()
	if err := errors.Join(err, otherErr, f.run.Validate()); err != nil {
		return &usageError{err}
	}
	if f.run.Address != "" {
		if f.run.Client, err = f.credentials.options(f.run.Address); err != nil {
			return err
		}
		if _, err := rpc.NewClient(f.run.Address, f.run.Client); err != nil {
			return asUsage(fmt.Errorf("--addr: %w", err))
		}
	}
	if err := checkOutput(f.out); err != nil {
		return err
	}
	if f.rdma.on && f.run.Address != "" {
		return &usageError{errors.New("--rdma has a server in this process: omit --addr")}
	}
	closers := unwind.New()
	defer func() { err = errors.Join(err, closeWithin(context.WithoutCancel(cmd.Context()), closers.Close)) }()
	what := ""
	if f.rdma.on {
		if what, err = f.openFabric(&closers); err != nil {
			return err
		}
	}
	progress, finish := drawProgress(cmd)
	f.run.Progress = progress
	r, err := calls.Run(cmd.Context(), f.run)
	finish()
	return printMeasured(cmd.Context(), r, err, func() error {
		r.Command, r.Fabric = commandLine(), what
		return outputReport(cmd, r, f.json, f.out)
	})
}

// openFabric opens the device and the NICs of the subjects by RDMA, and returns a text that
// describes them.
func (f *rpcBench) openFabric(closers *unwind.Stack) (string, error) {
	dev, domains, what, err := openFabric(closers, f.rdma.device, f.rdma.index, &f.rdma.nics)
	if err != nil {
		return "", err
	}
	fabric := &calls.Fabric{Client: domains[0].NIC, Server: domains[1].NIC, Device: dev, Flush: domains[0].Flush, OnDevice: f.rdma.gpu, Port: domains[0].Port()}
	if f.beside != "" {
		sizes, err := parseSizes("beside", []string{f.beside})
		if err != nil {
			return "", &usageError{err}
		}
		if fabric.Beside = sizes[0]; fabric.Beside > maxAttachmentBytes {
			return "", usagef("--beside %s: longer than %s", f.beside, present.Bytes(maxAttachmentBytes))
		}
	}
	f.run.Extra = fabric.Openers()
	return what, nil
}
