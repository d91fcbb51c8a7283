package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/transfer"
	"github.com/kvlane/kvlane/transfer/mooncake"
	"github.com/kvlane/kvlane/wire"
)

// serveFlags select the segment to serve.
type serveFlags struct {
	transferFlags
	name, listen, advertise string
	dataPort                int
	bufferBytes             int64
	memory                  memoryFlags
}

func (f *serveFlags) registerServe(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.name, "name", "", "name of the segment; with P2PHANDSHAKE its HOST:PORT for peers; port 0 is a free port")
	fl.StringVar(&f.listen, "listen", "", "HOST:PORT to listen on, if peers use another (default --name)")
	fl.IntVar(&f.dataPort, "data-port", 0, "port for the data of Mooncake's protocol; 0 is a free port")
	f.memory.registerMemory(cmd)
}

func newTransferServeCommand() *cobra.Command {
	f := serveFlags{bufferBytes: 64 << 20}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Offer memory as a segment",
		Long: `serve offers memory as a segment that other processes can read and write, until it is interrupted: a target for bench transfer, put, get and engines. The
memory is all zeros. It prints the segment's name and buffer once peers reach it, and each notification that comes for it.

Every peer that reaches its ports can read and write the memory: name an address of a trusted network. With --use-vram it is memory of a GPU,
and its bytes pass through pinned memory. By kvlane's own protocol (--protocol auto) processes of this host and user share the memory where that works, by NVLink
or in place, and peers that have RDMA NICs use them, if this machine has some too.`,
		Example: `  kvlane transfer serve --protocol mooncake --metadata P2PHANDSHAKE --name 127.0.0.1:15995 --buffer-size 64MiB`,
		Args:    usageArgs(cobra.NoArgs),
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.serve(cmd) },
	}
	f.register(cmd, protocols)
	f.registerServe(cmd)
	cmd.Flags().Var(sizeValue{&f.bufferBytes}, "buffer-size", "bytes of memory to offer")
	cmd.Flags().StringVar(&f.advertise, "advertise", "", "HOST:PORT for peers of a segment in a metadata server, if it is not --listen")
	return cmd
}

// serve serves a segment until the command's context ends. An interruption is not an error.
func (f *serveFlags) serve(cmd *cobra.Command) (err error) {
	if f.name == "" {
		return usagef("--name is required")
	}
	notReady(cmd.Context())
	if path, own, err := f.native(); own || err != nil {
		if err != nil {
			return err
		}
		return f.serveNative(cmd, path)
	}
	d, err := f.directory()
	if err != nil {
		return err
	}
	return f.memory.open(func(dev device.Device, s stream.Stream) error { return f.serveMooncake(cmd, d, dev, s) })
}

// mooncakeMemory registers zeroed memory and calls use with it. The memory belongs to dev, or to
// the host if dev is nil.
func (f *serveFlags) mooncakeMemory(ctx context.Context, dev device.Device, s stream.Stream, use func(*mooncake.Regions) error) (err error) {
	m, err := wire.NewMover(wire.MoverOptions{Device: dev, Copy: s})
	if err != nil {
		return err
	}
	var r *mem.Region
	if dev == nil {
		b, err := hostmem.Alloc(f.bufferBytes)
		if err != nil {
			return asUsage(fmt.Errorf("--buffer-size: %w", err))
		}
		defer func() { err = errors.Join(err, hostmem.Free(b)) }() // the server is closed by then
		if r, err = hostmem.Region(b); err != nil {
			return err
		}
	} else {
		if r, err = zeroed(ctx, dev, f.bufferBytes); err != nil {
			return asUsage(fmt.Errorf("--buffer-size: %w", err))
		}
		defer func() { err = errors.Join(err, m.Close(), dev.Free(r)) }()
	}
	regions := mooncake.NewRegions(m)
	if err := regions.Add(mooncake.Location(r), r); err != nil {
		return err
	}
	return use(regions)
}

// zeroed allocates zeroed memory of a device.
func zeroed(ctx context.Context, dev device.Device, bytes int64) (_ *mem.Region, err error) {
	r, err := dev.Alloc(bytes, device.AllocOptions{})
	if err != nil {
		return nil, err
	}
	q, err := dev.OpenQueue(device.QueueOptions{})
	if err != nil {
		return nil, errors.Join(err, dev.Free(r))
	}
	err = errors.Join(q.Fill(mem.All(r), 0), q.Close(ctx)) // Close waits for the fill
	if err != nil {
		return nil, err // not freed, because the device may still write to it
	}
	return r, nil
}

// serveMooncake serves a segment with Mooncake's protocol until the command's context ends.
func (f *serveFlags) serveMooncake(cmd *cobra.Command, d mooncake.Directory, dev device.Device, s stream.Stream) error {
	return f.mooncakeMemory(cmd.Context(), dev, s, func(m *mooncake.Regions) error { return f.serveRegions(cmd, d, m) })
}

func (f *serveFlags) serveRegions(cmd *cobra.Command, d mooncake.Directory, m *mooncake.Regions) (err error) {
	ctx := cmd.Context()
	notices := make(chan mooncake.Notification)
	s, err := mooncake.Serve(ctx, mooncake.ServerOptions{
		Name: f.name, Listen: f.listen, DataPort: f.dataPort, Directory: d, Memory: m,
		Advertise: f.advertise,
		OnNotify: func(ctx context.Context, n mooncake.Notification) error {
			select {
			case notices <- n:
				return nil
			case <-ctx.Done():
				return fmt.Errorf("print a notification: %w", errdefs.ErrBusy)
			}
		},
	})
	if err != nil {
		return asUsage(err)
	}
	defer func() {
		ctx, cancel := closing(ctx, closeTimeout, interruptGrace)
		defer cancel()
		err = errors.Join(err, s.Close(ctx))
	}()
	metricsOf(ctx).SetTransfer(func() transfer.Stats { return mooncakeStats(s) })
	isReady(ctx)
	seg := s.Segment()
	out := newLineWriter(cmd.OutOrStdout())
	err = out.print(ctx, "segment %s: %d bytes at %#x, data on port %d; interrupt to end\n", present.Name(seg.Name), seg.Buffers[0].Length, seg.Buffers[0].Addr, seg.DataPort)
	for err == nil {
		select {
		case n := <-notices:
			err = out.print(ctx, "notification from %q: %q\n", n.Name, n.Message)
		case <-ctx.Done():
			err = ctx.Err() // an interruption is the normal end
		}
	}
	t := s.Stats()
	return out.close("%d reads of %d bytes, %d writes of %d bytes, %d rejected, %d failed\n", t.Reads, t.ReadBytes, t.Writes, t.WrittenBytes, t.Rejected, t.Failed)
}

func newTransferMetadataCommand() *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "metadata",
		Short: "Run a metadata server",
		Long: `metadata runs a server in which processes find segments by name, over HTTP, until it is interrupted. Where names are addresses (P2PHANDSHAKE) none is
needed. It keeps its records in memory; kvlane registers its segments again after the server has lost them. Every client that reaches it can change its records.`,
		Example: `  kvlane transfer metadata --listen 127.0.0.1:15980`,
		Args:    usageArgs(cobra.NoArgs),
		RunE:    func(cmd *cobra.Command, _ []string) error { return serveMetadata(cmd, listen) },
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:8080", "HOST:PORT to listen on; port 0 is a free port")
	return cmd
}

func serveMetadata(cmd *cobra.Command, listen string) error {
	ctx := cmd.Context()
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/metadata", metadata.NewServer(metadata.ServerOptions{}))
	metricsOf(ctx).HandleHealth(mux)
	s := http.Server{Handler: mux, ReadTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		ctx, cancel := closing(ctx, closeTimeout, interruptGrace)
		defer cancel()
		stopped <- s.Shutdown(ctx)
	})
	fmt.Fprintf(cmd.OutOrStdout(), "metadata http://%s/metadata; interrupt to end\n", l.Addr())
	err = s.Serve(l)
	if stop() { // the server has failed without an interruption
		return fmt.Errorf("serve metadata: %w", err)
	}
	return <-stopped
}
