package soft

import (
	"fmt"
	"strings"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

const providerName = "soft"

// Provider is a set of software NICs that can connect to each other. It implements rdma.Provider.
type Provider struct {
	owner
	o      Options
	nics   []*nic
	engine *engine

	noise *mem.Region // source of corrupted bytes; nil without Options.Faults

	ports map[rdma.GID]*port // immutable
}

var _ rdma.Provider = (*Provider)(nil)

// New returns a provider. The caller closes it.
func New(o Options) (*Provider, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("make software NIC: %w", err)
	}
	o.setDefaults()
	p := &Provider{o: o, ports: make(map[rdma.GID]*port)}
	if o.Faults != nil {
		var err error
		if p.noise, err = makeNoise(o.Mover); err != nil {
			return nil, fmt.Errorf("make software NIC: Faults need memory to corrupt: %w", err)
		}
	}
	for i := range o.Devices {
		p.nics = append(p.nics, newNIC(p, i))
	}
	p.engine = newEngine(p, o.Schedule)
	p.open("provider")
	return p, nil
}

// Name returns "soft".
func (p *Provider) Name() string { return providerName }

// Devices returns the names of the devices in the order of Options.Devices.
func (p *Provider) Devices() ([]string, error) {
	if err := p.check("soft_get_device_list"); err != nil {
		return nil, err
	}
	names := make([]string, len(p.nics))
	for i, n := range p.nics {
		names[i] = n.info.Name
	}
	return names, nil
}

// Open opens the device with the given name. The result is a *Device.
func (p *Provider) Open(name string) (rdma.Device, error) {
	const call = "soft_open_device"
	if err := p.fault(OpOpen, call); err != nil {
		return nil, fmt.Errorf("open device %s: %w", name, err)
	}
	if err := p.adopt(call); err != nil {
		return nil, fmt.Errorf("open device %s: %w", name, err)
	}
	for _, n := range p.nics {
		if n.info.Name == name {
			return openDevice(n), nil
		}
	}
	p.removeChild()
	names, err := p.Devices()
	if err != nil {
		return nil, fmt.Errorf("open device %s: %w", name, err)
	}
	return nil, fmt.Errorf("open device %q: known devices are %s: %w", name, strings.Join(names, ", "), errdefs.ErrNotFound)
}

// Close closes the provider. It returns ErrBusy while a device is open.
func (p *Provider) Close() error {
	const call = "soft_close"
	if p.closed.Load() {
		return nil
	}
	if err := p.fault(OpClose, call); err != nil {
		return fmt.Errorf("close provider: %w", err)
	}
	ended, err := p.close(call)
	if err != nil {
		return fmt.Errorf("close provider: %w", err)
	}
	if !ended {
		return nil
	}
	p.engine.stop()
	if p.noise != nil {
		if err := hostmem.Free(p.noise.Bytes()); err != nil {
			return fmt.Errorf("close provider: %w", err)
		}
	}
	return nil
}

// Step takes one step of a provider with a manual schedule and reports whether one was possible.
// Calls that wait for transfers also take steps. Step is safe for concurrent use. It panics for
// other providers.
func (p *Provider) Step() bool {
	if !p.manual() {
		panic("soft: Step of a provider in automatic mode")
	}
	return p.engine.step()
}

func (p *Provider) manual() bool { return p.o.Schedule != nil && p.o.Schedule.Manual }

// fault counts a call of a verb and returns the failure that the plan has for it, or nil.
func (p *Provider) fault(op, call string) error {
	if p.o.Faults == nil {
		return nil
	}
	if f, hit := p.o.Faults.Hit(op); hit {
		return injected(call, f.Err)
	}
	return nil
}

// injected returns the error of a verb that fails because of an injected fault.
func injected(call string, cause error) error {
	return fmt.Errorf("%w: %w", &rdma.Error{Call: call, Text: "a fault was injected"}, cause)
}

// portOf returns the port that has gid, or nil.
func (p *Provider) portOf(gid rdma.GID) *port {
	return p.ports[gid]
}
