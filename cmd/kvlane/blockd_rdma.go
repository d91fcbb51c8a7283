package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/blockio/gateway"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/internal/autonic"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/unwind"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/telemetry"
)

// blockdRDMA has the NIC of a block server.
type blockdRDMA struct {
	gateway *gateway.Gateway // nil: clients use sockets only
	closers unwind.Stack
}

// openRDMA opens a NIC if the server's clients are authenticated. Unless flags name NICs, it is
// optional: without one, clients use sockets. It prints the path and its reason.
func (f *blockdFlags) openRDMA(cmd *cobra.Command, authenticates bool) (*blockdRDMA, error) {
	r := &blockdRDMA{closers: unwind.New()}
	if !authenticates {
		return r, nil
	}
	c, err := f.rdma.config()
	if err != nil {
		return nil, err
	}
	why, err := r.open(cmd.Context(), c)
	if err == nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "clients may use RDMA: %s\n", why)
		return r, nil
	}
	if undone := r.close(cmd.Context()); undone != nil || c.Named() || !isOptional(err) {
		return nil, asUsage(errors.Join(fmt.Errorf("open NIC: %w", err), undone))
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "NICs are not used, clients use sockets: %s\n", errorText(err))
	return &blockdRDMA{closers: unwind.New()}, nil
}

// open returns a text that describes the NIC.
func (r *blockdRDMA) open(ctx context.Context, c gdr.Config) (string, error) {
	n, err := gdr.OpenHost(device.Info{NUMANode: -1}, c, autonic.Provider(ctx))
	if err != nil {
		return "", err
	}
	r.closers.Add("NICs", n.Close)
	d, err := n.OpenDomain()
	if err != nil {
		return "", err
	}
	r.closers.AddPlain("NIC of block I/O", d.Close)
	r.gateway, err = gateway.New(gateway.Options{
		NIC: d.NIC, Connect: d.Connect, Kind: mem.KindHost, Memory: mem.BufferHooks{Alloc: hostmem.AllocRegion, Free: hostmem.FreeRegion},
	})
	if err != nil {
		return "", err
	}
	r.closers.Add("RDMA gateway", r.gateway.Close)
	return fmt.Sprintf("NIC %s, %s", d.NIC.Name(), d.Reason), nil
}

func (r *blockdRDMA) close(ctx context.Context) error { return closeWithin(ctx, r.closers.Close) }

// stats returns the counters of the gateway, or nil without one.
func (r *blockdRDMA) stats() *gateway.Stats {
	if r.gateway == nil {
		return nil
	}
	s := r.gateway.Stats()
	return &s
}

// export adds the gateway's buffers to the metrics.
func (r *blockdRDMA) export(m *telemetry.Metrics) {
	if r.gateway == nil {
		return
	}
	for name, stats := range r.gateway.Buffers() {
		m.SetBuffers("blockd-"+name, stats)
		r.closers.AddPlain("metrics", func() error { m.SetBuffers("blockd-"+name, nil); return nil })
	}
}

// requests returns the number of requests by RDMA.
func (r *blockdRDMA) requests() int64 {
	if s := r.stats(); s != nil {
		return s.Requests
	}
	return 0
}
