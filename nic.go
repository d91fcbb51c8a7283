//go:build !nonic

package kvlane

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/ibv"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/rdma/topology"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/nic"
)

// probeBytes is the memory that NICs are tried with: a page of a GPU.
const probeBytes = 64 << 10

// nics implements nicStack. Safe for concurrent use.
type nics struct {
	cfg    *RDMAConfig
	flush  func(device int) error // nil: none is needed
	set    *registry.Set
	open   []*registry.Registry
	counts []*nic.Counters // of open
	chosen []NICChoice
	ids    []string // of the NICs, by which profiles know them
	closers
}

// newNICStack opens the NICs that c selects for dev and registers memory of dev with them, to find out whether that is
// possible at all. openCopy opens copy streams of dev, for NICs in software. Without a device they are for host memory.
func newNICStack(c *RDMAConfig, dev device.Device, openCopy func() (stream.Stream, error)) (_ nicStack, err error) {
	n := &nics{cfg: c, closers: newClosers()}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.undo(context.Background(), undoTimeout))
		}
	}()
	provider, err := n.openProvider(openCopy)
	if err != nil {
		return nil, err
	}
	names, err := provider.Devices()
	if err != nil {
		return nil, err
	}
	place := device.Info{NUMANode: -1}
	if dev != nil {
		place = dev.Info()
	}
	candidates, err := topology.Choose(names, place, n.topology(place.Index))
	if err != nil {
		return nil, err
	}
	var exporter registry.Exporter
	if n.cfg.Provider != ProviderSoft || n.cfg.softAsHardware { // those in software copy as the device itself does
		exporter, _ = dev.(device.DMABufExporter) // not every device exports memory
		if n.flush, err = flusher(dev); err != nil {
			return nil, err
		}
	}
	n.set = registry.NewSet(provider, registry.Options{Exporter: exporter})
	n.addPlain("NICs", n.set.Close)
	for i := range candidates {
		g, err := n.set.NIC(candidates[i].Name)
		if err != nil {
			return nil, err
		}
		port, err := n.port(g)
		if err != nil {
			return nil, err
		}
		n.open, n.counts = append(n.open, g), append(n.counts, new(nic.Counters))
		n.chosen = append(n.chosen, NICChoice{Name: g.Name(), Reason: candidates[i].Reason + "; " + port.Reason})
		id, err := portIdentity(g, port)
		if err != nil {
			return nil, err
		}
		n.ids = append(n.ids, id)
	}
	if dev == nil {
		return n, nil
	}
	return n, n.tryRegister(dev)
}

// flusher returns what makes dev see the writes of NICs, or nil where it always does.
func flusher(dev device.Device) (func(device int) error, error) {
	f, ok := dev.(device.RemoteWriteFlusher)
	if !ok {
		return nil, nil
	}
	if needs, err := f.NeedsFlush(); err != nil || !needs {
		return nil, err
	}
	own := dev.Info().Index
	return func(index int) error {
		if index != own {
			return fmt.Errorf("device %d is none of this engine's, which has device %d: %w", index, own, errdefs.ErrInvalid)
		}
		return f.FlushRemoteWrites()
	}, nil
}

// openProvider opens the provider and what it needs.
func (n *nics) openProvider(openCopy func() (stream.Stream, error)) (rdma.Provider, error) {
	if n.cfg.Provider != ProviderSoft {
		p, err := ibv.Load()
		if err != nil {
			return nil, err
		}
		n.addPlain("provider", p.Close)
		return p, nil
	}
	count := max(n.cfg.Count, len(n.cfg.NICs), 1)
	for _, names := range n.cfg.NICsByDevice {
		count = max(count, len(names))
	}
	devices := make([]soft.DeviceOptions, count)
	p, err := soft.New(soft.Options{Mover: n.mover(openCopy), Devices: devices})
	if err != nil {
		return nil, err
	}
	n.addPlain("provider", p.Close)
	return p, nil
}

// mover returns what moves the bytes of NICs in software: a copy stream, or else the CPU.
func (n *nics) mover(openCopy func() (stream.Stream, error)) soft.Mover {
	if openCopy == nil {
		return soft.CPUMover{}
	}
	m := soft.NewStreamMover(openCopy)
	n.add("mover", m.Close)
	return m
}

// topology returns what the configuration says of the NICs of the device with that index.
func (n *nics) topology(index int) topology.Options {
	o := topology.Options{Count: n.cfg.Count, Named: n.cfg.NICsByDevice}
	if len(n.cfg.NICs) > 0 {
		o.Named = make([][]string, index+1)
		o.Named[index] = n.cfg.NICs
	}
	return o
}

// port finds the port of g that streams use, as it is now.
func (n *nics) port(g *registry.Registry) (topology.Port, error) {
	o := topology.PortOptions{Port: n.cfg.Port, GIDIndex: n.cfg.GIDIndex}
	for m := rdma.MTU256; m <= rdma.MTU4096; m++ {
		if m.Bytes() == n.cfg.MTU {
			o.MTU = m
		}
	}
	return topology.FindPort(g.Device(), o)
}

// tryRegister registers a little memory of dev, notes how the NICs reach it, and takes it back.
func (n *nics) tryRegister(dev device.Device) (err error) {
	r, err := dev.Alloc(probeBytes, device.AllocOptions{})
	if err != nil {
		return fmt.Errorf("allocate device memory to try a NIC with: %w", err)
	}
	defer func() { err = errors.Join(err, n.release(dev, r)) }()
	if err := n.register(r); err != nil {
		return err
	}
	for i, g := range n.open {
		m, err := g.Acquire(mem.All(r))
		if err != nil {
			return err
		}
		method, why := m.Method()
		m.Release()
		n.chosen[i].Reason += "; the device's memory by " + method.String()
		if why != nil {
			n.chosen[i].Reason += " (" + why.Error() + ")"
		}
	}
	return nil
}

// tryTimeout bounds each wait of a try, which takes microseconds where all is well.
const tryTimeout = 10 * time.Second

// release unregisters and frees memory, but for what a NIC does not let go of.
func (n *nics) release(dev device.Device, regions ...*mem.Region) error {
	ctx, cancel := context.WithTimeout(context.Background(), tryTimeout)
	defer cancel()
	var errs []error
	for _, r := range regions {
		err := n.unregister(ctx, r)
		if err == nil {
			err = dev.Free(r)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// portIdentity names g and the port of it with all that what they take depends on.
func portIdentity(g *registry.Registry, port topology.Port) (string, error) {
	info := g.Device().Info()
	p, err := g.Device().QueryPort(port.Number)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %s %#x firmware %s port %d %g Gb/s MTU %s", info.Provider, info.Name, info.GUID, info.Firmware, p.Number, p.RateGbps, port.MTU), nil
}

// identity implements nicStack.
func (n *nics) identity() string {
	return fmt.Sprintf("%s, %d queue pairs", strings.Join(n.ids, ", "), cmp.Or(n.cfg.QueuePairs, nic.DefaultQueuePairs))
}

func (n *nics) path() stream.Path {
	if n.cfg.Provider == ProviderSoft {
		return stream.PathNICSoft
	}
	return stream.PathNIC
}

// reaches reports whether all of r can be copied from and to: it is registered, or will be.
func (n *nics) reaches(r *mem.Region) bool {
	if n.cfg.RegisterOnUse {
		return true
	}
	for _, g := range n.open {
		if !g.Covers(mem.All(r)) {
			return false
		}
	}
	return true
}

func (n *nics) choices() []NICChoice { return append([]NICChoice(nil), n.chosen...) }

func (n *nics) register(regions ...*mem.Region) error { return registry.Register(n.open, regions...) }

func (n *nics) unregister(ctx context.Context, regions ...*mem.Region) error {
	return registry.Unregister(ctx, n.open, regions...)
}

// openStream opens a stream over all NICs, by the ports that are active now.
func (n *nics) openStream() (stream.Stream, error) {
	o := nic.Options{QueuePairs: n.cfg.QueuePairs, RegisterOnUse: n.cfg.RegisterOnUse, Flush: n.flush}
	var err error
	if o.NICs, err = n.rails(); err != nil {
		return nil, err
	}
	s, err := nic.Open(o)
	if err != nil {
		return nil, err // not a nil *nic.Stream in an interface
	}
	return s, nil
}

// rails returns the NICs, with the ports that are active now.
func (n *nics) rails() ([]nic.NIC, error) {
	var all []nic.NIC
	for i, g := range n.open {
		port, err := n.port(g)
		if err != nil {
			return nil, err
		}
		all = append(all, nic.NIC{
			Registry: g, Counters: n.counts[i],
			Connect: rdma.ConnectOptions{Port: port.Number, GIDIndex: port.GIDIndex, MTU: port.MTU},
		})
	}
	return all, nil
}

// TryNICs opens the NICs that c selects for dev, copies a few KiB to dev and back by them, and says which they are. What
// is missing is in the error: ErrNotSupported where there is no library, no NIC, or no way for a NIC to reach dev's memory.
func TryNICs(ctx context.Context, dev device.Device, c RDMAConfig) (_ []NICChoice, err error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.Provider == ProviderSoft {
		return nil, fmt.Errorf("NICs in software need not be tried: %w", errdefs.ErrInvalid)
	}
	stack, err := newNICStack(&c, dev, nil)
	if err != nil {
		return nil, err
	}
	n := stack.(*nics) //nolint:errcheck // it is no other
	defer func() { err = errors.Join(err, n.undo(ctx, undoTimeout)) }()
	return n.choices(), n.tryCopy(ctx, dev)
}

// tryCopy copies to dev and back by the NICs.
func (n *nics) tryCopy(ctx context.Context, dev device.Device) (err error) {
	var regions []*mem.Region
	defer func() { err = errors.Join(err, n.release(dev, regions...)) }()
	onDevice, err := dev.Alloc(probeBytes, device.AllocOptions{})
	if err != nil {
		return err
	}
	regions = append(regions, onDevice)
	host, err := dev.AllocHost(2 * probeBytes)
	if err != nil {
		return err
	}
	regions = append(regions, host)
	if err := n.register(regions...); err != nil {
		return err
	}
	s, err := n.openStream()
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tryTimeout)
		defer cancel()
		err = errors.Join(err, s.Close(ctx))
	}()
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	sent, back := host.Bytes()[:probeBytes], host.Bytes()[probeBytes:]
	for i := range sent {
		sent[i] = byte(i*31 + i>>8)
	}
	there := mem.Extent{Region: onDevice, Len: probeBytes}
	for _, b := range []*mem.Batch{
		{Dst: []mem.Extent{there}, Src: []mem.Extent{{Region: host, Len: probeBytes}}},
		{Dst: []mem.Extent{{Region: host, Off: probeBytes, Len: probeBytes}}, Src: []mem.Extent{there}},
	} {
		t, err := s.Submit(ctx, b)
		if err != nil {
			return err
		}
		if err := t.Wait(ctx); err != nil {
			return err
		}
	}
	if !bytes.Equal(sent, back) {
		return fmt.Errorf("bytes that went to the device and back by a NIC are not the same: %w", errdefs.ErrCorrupt)
	}
	return nil
}
