package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/bench/transfer"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/internal/sys/nvml"
	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/metadata/etcd"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	engine "github.com/kvlane/kvlane/transfer"
	"github.com/kvlane/kvlane/transfer/mooncake"
)

// protocolAuto is kvlane's own protocol with any path. Other values for this protocol are the names
// of single paths.
const protocolAuto = "auto"

// protocols are the values of --protocol for commands that serve or measure segments. hostProtocols
// are the values for commands that open neither NICs nor a device.
var protocols = []string{protocolMooncake, protocolAuto, engine.PathNVLink.String(), engine.PathShm.String(), engine.PathRDMA.String(), engine.PathTCP.String()}

var hostProtocols = []string{protocolMooncake, protocolAuto, engine.PathShm.String(), engine.PathTCP.String()}

// memoryFlags select the memory and the NICs of a process in transfers.
type memoryFlags struct {
	vram   bool
	device string
	gpu    int
	rdma   rdmaFlags
}

func (f *memoryFlags) registerMemory(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.BoolVar(&f.vram, "use-vram", false, "use device memory instead of host memory")
	fl.IntVar(&f.gpu, "gpu-id", 0, "index of the device, from 0")
	registerDevice(fl, &f.device)
	f.rdma.registerNICs(fl)
}

// openNICs opens the NICs for a path and sets them in o. done closes them. If other paths are
// possible and no NIC is named, NICs are optional: if none can be opened, o has none, and memory
// that they refuse uses other paths.
func (f *memoryFlags) openNICs(path engine.Path, o *transfer.NativeOptions) (done func() error, err error) {
	none := func() error { return nil }
	if path != engine.PathNone && path != engine.PathRDMA {
		return none, nil
	}
	c, err := f.rdma.config()
	if err != nil {
		return nil, err
	}
	o.NICsOptional = path == engine.PathNone && len(c.NICs) == 0
	n, err := gdr.Open(o.Device, c, nil)
	if o.NICsOptional && isOptional(err) {
		return none, nil
	}
	if err != nil {
		return nil, asUsage(fmt.Errorf("open NIC: %w", err))
	}
	done = func() error {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		return n.Close(ctx)
	}
	if o.NICs, err = n.Transfers(); err != nil {
		return nil, errors.Join(err, done())
	}
	return done, nil
}

// isOptional reports whether an error of opening NICs means that there is none, or that it is broken
// or refuses memory.
func isOptional(err error) bool {
	return errors.Is(err, errdefs.ErrNotSupported) || errors.Is(err, errdefs.ErrBroken) || errors.Is(err, errdefs.ErrNoMemory)
}

// noteRefusal prints the reason for which NICs refused memory, if any.
func noteRefusal(cmd *cobra.Command, s engine.Stats) {
	if s.Refusal != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "NICs are not used: %s\n", errorText(s.Refusal))
	}
}

// open calls use with the device of the memory and a copy stream. Both are nil for host memory.
func (f *memoryFlags) open(use func(device.Device, stream.Stream) error) (err error) {
	if !f.vram {
		return use(nil, nil)
	}
	dev, err := openDevice(f.device, f.gpu, sim.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	s, err := streamcopy.Open(dev, streamcopy.Options{})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		err = errors.Join(err, s.Close(ctx))
	}()
	return use(dev, s)
}

// native returns the path that the flags select. ok is false for Mooncake's protocol.
func (f *transferFlags) native() (path engine.Path, ok bool, err error) {
	switch {
	case !slices.Contains(f.protocols, f.protocol):
		return path, false, usagef("--protocol %q: must be one of %s", f.protocol, strings.Join(f.protocols, ", "))
	case f.protocol == protocolMooncake:
		return path, false, nil
	case f.protocol == protocolAuto:
		return engine.PathNone, true, nil
	}
	path, err = engine.ParsePath(f.protocol)
	return path, true, err
}

// store returns the metadata store for segments of kvlane's own protocol. It is nil if segments are
// opened by the address of their engine. done closes it.
func (f *transferFlags) store() (_ metadata.Store, done func(), err error) {
	if f.metadata == mooncake.P2PHandshake {
		return nil, func() {}, nil
	}
	if strings.HasPrefix(f.metadata, etcd.Scheme+"://") {
		o, err := f.etcd.optionsOf(f.metadata)
		if err != nil {
			return nil, nil, fmt.Errorf("--metadata: %w", err)
		}
		s, err := etcd.OpenStore(o)
		if err != nil {
			return nil, nil, &usageError{fmt.Errorf("--metadata: %w", err)}
		}
		return s, func() { _ = s.Close() }, nil // its values expire
	}
	c, err := metadata.NewClient(f.metadata, 0)
	if err != nil {
		return nil, nil, &usageError{fmt.Errorf("--metadata: %w", err)}
	}
	return c, c.Close, nil
}

// nativeSegment is the name of a segment that is opened by the address of its engine.
const nativeSegment = "memory"

// serveNative serves memory with kvlane's own protocol until the command's context ends.
func (f *serveFlags) serveNative(cmd *cobra.Command, path engine.Path) error {
	store, done, err := f.store()
	if err != nil {
		return err
	}
	defer done()
	o := transfer.TargetOptions{NativeOptions: transfer.NativeOptions{Bytes: f.bufferBytes, Store: store}, Name: f.name, Listen: f.listen, Advertise: f.advertise, Path: path}
	if store == nil {
		o.Name, o.Listen = nativeSegment, f.name
		if f.listen != "" {
			o.Listen, o.Advertise = f.listen, f.name
		}
	}
	return f.memory.open(func(dev device.Device, s stream.Stream) (err error) {
		o.Device, o.Copy = dev, s
		done, err := f.memory.openNICs(path, &o.NativeOptions)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, done()) }()
		ctx := cmd.Context()
		t, err := transfer.OpenTarget(ctx, o)
		if err != nil {
			return asUsage(err)
		}
		defer func() { err = errors.Join(err, t.Close()) }()
		noteRefusal(cmd, t.Engine().Stats())
		metricsOf(ctx).SetTransfer(t.Engine().Stats)
		isReady(ctx)
		if err := t.Unshared(); err != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "shared memory is not used: %s\n", errorText(err))
		}
		out := newLineWriter(cmd.OutOrStdout())
		err = out.print(ctx, "segment %s: %d bytes; interrupt to end\n", t.Segment(), f.bufferBytes)
		for err == nil {
			var n engine.Notice
			if n, err = t.Engine().Receive(ctx); err == nil {
				err = out.print(ctx, "notification for %q: %q\n", n.Segment, n.Body)
			}
		} // an interruption is the normal end
		had := t.Engine().Stats()
		return out.close("%d requests over sockets, %d bytes read, %d bytes written, %d refused\n", had.Requests, had.BytesOut, had.BytesIn, had.Refused)
	})
}

// measureNative measures as the initiator with kvlane's own protocol.
func (f *benchTransfer) measureNative(cmd *cobra.Command, path engine.Path) error {
	store, done, err := f.serve.store()
	if err != nil {
		return err
	}
	defer done()
	return f.serve.memory.open(func(dev device.Device, s stream.Stream) (err error) {
		o := transfer.NativeOptions{Device: dev, Copy: s, Bytes: f.serve.bufferBytes, Store: store, Lanes: f.lanes}
		done, err := f.serve.memory.openNICs(path, &o)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, done()) }()
		n, err := transfer.OpenNative(cmd.Context(), f.segment, path, o)
		if err != nil {
			return printMeasured[transfer.Report](cmd.Context(), nil, asUsage(err), nil)
		}
		defer func() { err = errors.Join(err, n.Close()) }()
		noteRefusal(cmd, n.Engine().Stats())
		metricsOf(cmd.Context()).SetTransfer(n.Engine().Stats)
		if n.Protocol() == engine.PathNVLink.String() {
			defer f.countLinks(cmd, dev)()
		}
		return f.carry(cmd, n)
	})
}

// countLinks counts the bytes on the NVLinks of a GPU until done is called, if the driver supports
// it.
func (f *benchTransfer) countLinks(cmd *cobra.Command, dev device.Device) (done func()) {
	if dev == nil || dev.Info().PCI == "" {
		return func() {}
	}
	pci := dev.Info().PCI
	lib, err := nvml.Load()
	if err == nil {
		if _, _, err = lib.NVLinkBytes(pci); err == nil {
			f.run.Links = func() (int64, error) {
				sent, received, err := lib.NVLinkBytes(pci)
				return sent + received, err
			}
			return func() { _ = lib.Close() } // the counters are not needed any more
		}
		err = errors.Join(err, lib.Close())
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "NVLink counters are not available: %s\n", errorText(err))
	return func() {}
}
