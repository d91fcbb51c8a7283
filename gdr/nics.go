package gdr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/unwind"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/rail"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/nic"
	"github.com/kvlane/kvlane/stream/softnic"
	"github.com/kvlane/kvlane/topology"
)

// probeBytes is the length of the memory that Open registers as a test: one GPU page.
const probeBytes = 64 << 10

// NICs is a set of open RDMA NICs with registered memory. It is safe for concurrent use.
type NICs struct {
	cfg    Config
	flush  func(device int) error // nil: no flush is needed
	dev    device.Device          // or nil
	source *registry.Devices      // opens the NICs, also for transfers
	how    registry.Options       // options for registering memory
	open   []*registry.Registry
	counts []*nic.Counters // parallel to open
	chosen []Choice
	ids    []string // identities of the NICs for profiles
	closes unwind.Stack
}

// Open opens the NICs that c selects for dev, and tests whether they can access memory of dev. If
// dev is nil, it opens them for host memory only. Software NICs copy with a stream opened by
// openCopy (nil: a stream of dev with default options), or with the CPU if dev is nil. Open returns
// ErrNotSupported if there is no library, no NIC, or no way for a NIC to access dev's memory. The
// caller closes the NICs before dev.
func Open(dev device.Device, c Config, openCopy func() (stream.Stream, error)) (*NICs, error) {
	// Software NICs copy with the device's own streams, so they need no exported memory and no
	// flush.
	return open(dev, c, openCopy, c.Provider != Soft)
}

// OpenHost opens the NICs that c selects for a device, for host memory only. They are NICs of p,
// which the caller closes later. If p is nil, c selects the provider, and software NICs copy with
// the CPU. Errors are those of Open.
func OpenHost(place device.Info, c Config, p rdma.Provider) (*NICs, error) {
	return openFor(p, &place, nil, c, nil, false)
}

// open implements Open. If exports is true, NICs access the memory that dev exports, and dev is
// flushed after NIC writes.
func open(dev device.Device, c Config, openCopy func() (stream.Stream, error), exports bool) (*NICs, error) {
	place := device.Info{NUMANode: -1}
	if dev != nil {
		place = dev.Info()
	}
	return openFor(nil, &place, dev, c, openCopy, exports)
}

// openFor opens the NICs for a device at place. dev is nil for host memory only, and provider is
// nil unless the caller has it.
func openFor(provider rdma.Provider, place *device.Info, dev device.Device, c Config, openCopy func() (stream.Stream, error), exports bool) (_ *NICs, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	n := &NICs{cfg: c, closes: unwind.New()}
	defer func() {
		if err != nil {
			err = withRemedy(errors.Join(err, n.closes.Undo(context.Background(), unwind.Timeout)))
		}
	}()
	if dev != nil && openCopy == nil {
		openCopy = func() (stream.Stream, error) { return streamcopy.Open(dev, streamcopy.Options{}) }
	}
	if provider == nil {
		if provider, err = n.openProvider(dev, openCopy); err != nil {
			return nil, err
		}
	}
	if err := n.openNICs(provider, place, dev, exports); err != nil {
		return nil, err
	}
	return n, nil
}

// trySoft is the last part of remedies.
const trySoft = "the provider soft (--rdma-provider soft) runs this path without a NIC"

// withRemedy adds a remedy to an error about missing or broken hardware that has no remedy yet.
func withRemedy(err error) error {
	if errdefs.Remedy(err) != "" || !errors.Is(err, errdefs.ErrNotSupported) && !errors.Is(err, errdefs.ErrBroken) {
		return err
	}
	return errdefs.WithRemedy(err, "use an RDMA NIC with an active port: kvlane doctor reports missing parts, and "+trySoft)
}

// openNICs opens the NICs of the provider. If dev is not nil, it tests them with memory of dev.
func (n *NICs) openNICs(provider rdma.Provider, place *device.Info, dev device.Device, exports bool) (err error) {
	var o registry.Options
	if dev != nil && exports {
		o.Exporter, _ = dev.(device.DMABufExporter) // not every device exports memory
		if n.flush, err = flusher(dev); err != nil {
			return err
		}
	}
	n.dev, n.source, n.how = dev, registry.NewDevices(provider), o
	if err := n.choose(provider, place, o); err != nil || dev == nil {
		return err
	}
	return n.tryRegister(dev)
}

// choose opens the provider's NICs that are selected for a device at place.
func (n *NICs) choose(provider rdma.Provider, place *device.Info, o registry.Options) error {
	names, err := provider.Devices()
	if err != nil {
		return err
	}
	candidates, err := topology.Choose(names, *place, n.topology(place.Index))
	if err != nil {
		return err
	}
	set := n.source.NewSet(o)
	n.closes.AddPlain("NICs", set.Close)
	for i := range candidates {
		g, err := set.NIC(candidates[i].Name)
		if err != nil {
			return err
		}
		port, err := n.port(g)
		if err != nil {
			return err
		}
		id, err := portIdentity(g, port)
		if err != nil {
			return err
		}
		n.open, n.counts, n.ids = append(n.open, g), append(n.counts, new(nic.Counters)), append(n.ids, id)
		n.chosen = append(n.chosen, Choice{Name: g.Name(), Reason: candidates[i].Reason + "; " + port.Reason})
	}
	return nil
}

// flusher returns the function that makes NIC writes visible to dev, or nil if no flush is needed.
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
			return fmt.Errorf("device %d is not device %d of this engine: %w", index, own, errdefs.ErrInvalid)
		}
		return f.FlushRemoteWrites()
	}, nil
}

// openProvider opens the provider and the objects that it needs.
func (n *NICs) openProvider(dev device.Device, openCopy func() (stream.Stream, error)) (rdma.Provider, error) {
	if n.cfg.Provider != Soft {
		p, closeProvider, err := loadVerbs()
		if err != nil {
			return nil, err
		}
		n.closes.AddPlain("provider", closeProvider)
		return p, nil
	}
	count := max(n.cfg.Count, len(n.cfg.NICs), 1)
	for _, names := range n.cfg.NICsByDevice {
		count = max(count, len(names))
	}
	// the default is to copy with the CPU
	o := soft.Options{Devices: make([]soft.DeviceOptions, count)}
	if dev != nil {
		m := softnic.NewMover(openCopy)
		n.closes.Add("mover", m.Close)
		if err := m.Open(); err != nil {
			return nil, err
		}
		o.Mover = m
	}
	p, err := soft.New(o)
	if err != nil {
		return nil, err
	}
	n.closes.AddPlain("provider", p.Close)
	return p, nil
}

// topology returns the options for selecting NICs for the device with an index.
func (n *NICs) topology(index int) topology.Options {
	o := topology.Options{Count: n.cfg.Count, Named: n.cfg.NICsByDevice}
	if len(n.cfg.NICs) > 0 {
		o.Named = make([][]string, index+1)
		o.Named[index] = n.cfg.NICs
	}
	return o
}

// port returns the port of g for new streams.
func (n *NICs) port(g *registry.Registry) (rdma.Port, error) {
	o := rdma.PortOptions{Port: n.cfg.Port, GIDIndex: n.cfg.GIDIndex}
	for m := rdma.MTU256; m <= rdma.MTU4096; m++ {
		if m.Bytes() == n.cfg.MTU {
			o.MTU = m
		}
	}
	return rdma.FindPort(g.Device(), o)
}

// tryRegister registers and unregisters memory of dev. It records in chosen how the NICs access the
// memory.
func (n *NICs) tryRegister(dev device.Device) (err error) {
	r, err := dev.Alloc(probeBytes, device.AllocOptions{})
	if err != nil {
		return fmt.Errorf("allocate device memory for the test of a NIC: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), unwind.Timeout)
		defer cancel()
		gone := n.Unregister(ctx, r)
		if gone == nil { // otherwise a NIC may still access the memory
			gone = dev.Free(r)
		}
		err = errors.Join(err, gone)
	}()
	if err := n.Register(r); err != nil {
		return err
	}
	for i, g := range n.open {
		m, err := g.Acquire(mem.All(r), nic.Access)
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

// portIdentity returns a text with all properties of g and the port that affect copy times.
func portIdentity(g *registry.Registry, port rdma.Port) (string, error) {
	info := g.Device().Info()
	p, err := g.Device().QueryPort(port.Number)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %s %#x firmware %s port %d %g Gb/s MTU %s", info.Provider, info.Name, info.GUID, info.Firmware, p.Number, p.RateGbps, port.MTU), nil
}

// Identity returns a text with all properties of the NICs that affect copy times.
func (n *NICs) Identity() string {
	return fmt.Sprintf("%s, %d queue pairs", strings.Join(n.ids, ", "), cmp.Or(n.cfg.QueuePairs, nic.DefaultQueuePairs))
}

// Choices returns the selected NICs with the reasons.
func (n *NICs) Choices() []Choice { return slices.Clone(n.chosen) }

// Stats returns the statistics of each NIC, in the order of Choices. It may be called after Close.
func (n *NICs) Stats() []stream.NICStats {
	all := make([]stream.NICStats, len(n.open))
	for i, g := range n.open {
		s := &all[i]
		s.Name = g.Name()
		n.counts[i].Read(s)
		r := g.Stats()
		s.RegistrationsFailed, s.ConnectRetries = r.Failed, n.source.ConnectRetries(g.Name())
		for k, by := range r.By {
			s.Registrations = append(s.Registrations, stream.RegistrationStats{
				Method: registry.Method(k + 1).String(), Live: by.Live, Bytes: by.Bytes, Total: by.Total,
			})
		}
	}
	return all
}

// Register registers all regions with all NICs, or none. It returns ErrExists for a region that
// overlaps a registered one. If a partial registration cannot be undone, the error includes the
// reason, and the caller must call Unregister.
func (n *NICs) Register(regions ...*mem.Region) error {
	return registry.Register(n.open, rdma.MROptions{Access: nic.Access}, regions...)
}

// Answered reports whether err contains an error code of a NIC for a call or a request.
func Answered(err error) bool {
	var call *rdma.Error
	var request *rdma.WCError
	return errors.As(err, &call) || errors.As(err, &request)
}

// Refused reports whether an error of Register means that a NIC refused the memory. It returns
// false for errors of the caller.
func Refused(err error) bool {
	var left *registry.LeftError
	if errors.As(err, &left) {
		err = left.Err
	}
	var verb *rdma.Error
	return errors.As(err, &verb) || errors.Is(err, errdefs.ErrNotSupported)
}

// Unregister unregisters regions. If it returns nil, they may be freed. It returns ErrBusy with the
// cause of ctx if transfers still use them when ctx ends. It ignores regions that are not
// registered.
func (n *NICs) Unregister(ctx context.Context, regions ...*mem.Region) error {
	return registry.Unregister(ctx, n.open, regions...)
}

// Carrier returns the NICs for use in copy streams.
func (n *NICs) Carrier() *streamcopy.Carrier {
	path := stream.PathNIC
	if n.cfg.Provider == Soft {
		path = stream.PathNICSoft
	}
	return &streamcopy.Carrier{Path: path, Open: n.OpenStream, Reaches: n.reaches}
}

// reaches reports whether all of r is registered or will be registered when a copy uses it.
func (n *NICs) reaches(r *mem.Region) bool {
	return n.cfg.RegisterOnUse || !slices.ContainsFunc(n.open, func(g *registry.Registry) bool { return !g.Covers(mem.All(r), nic.Access) })
}

// OpenStream opens a stream over the active ports of all NICs. The caller closes it before the
// NICs.
func (n *NICs) OpenStream() (stream.Stream, error) {
	rails, err := n.Rails()
	if err != nil {
		return nil, err
	}
	s, err := nic.Open(nic.Options{NICs: rails, QueuePairs: n.cfg.QueuePairs, RegisterOnUse: n.cfg.RegisterOnUse, Flush: n.flush})
	if err != nil {
		return nil, err // return a nil interface, not a nil *nic.Stream
	}
	return s, nil
}

// Rails returns the NICs and their active ports for use in streams.
func (n *NICs) Rails() ([]nic.NIC, error) {
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

// Transfers returns the NICs and their active ports for engines of package transfer. These engines
// register memory separately. The caller closes the result before the NICs.
func (n *NICs) Transfers() (*rail.NICs, error) {
	rails, err := n.Rails()
	if err != nil {
		return nil, err
	}
	o := rail.Options{Devices: n.source, Registry: n.how, Flush: n.flush}
	if n.dev != nil {
		o.Pinned = n.dev
	}
	for i := range rails {
		o.NICs = append(o.NICs, rail.NIC{Name: rails[i].Registry.Name(), Connect: rails[i].Connect})
	}
	return rail.New(o)
}

// Close closes the NICs. It stops at the first object that cannot be closed and returns its error.
// It may be retried and called concurrently.
func (n *NICs) Close(ctx context.Context) error { return n.closes.Close(ctx) }
