package registry

import (
	"errors"
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma"
)

// Devices opens NICs of a provider for several sets: each NIC once, for as long as one of them has it. Safe for concurrent use. Who opens a
// NIC waits for another set's opening or closing of it.
type Devices struct {
	provider rdma.Provider

	mu  sync.Mutex // not held while the provider is called
	all map[string]*device
}

// NewDevices returns Devices of which none is open. They do not own the provider, which must outlive their sets.
func NewDevices(p rdma.Provider) *Devices {
	return &Devices{provider: p, all: make(map[string]*device)}
}

// NewSet returns a set without an open NIC.
func (d *Devices) NewSet(o Options) *Set { return &Set{devices: d, o: o} }

// ConnectRetries returns how often the provider tried again to connect a queue pair of the NIC, whoever has it (see rdma.RetryCounter).
func (d *Devices) ConnectRetries(name string) int64 {
	c, ok := d.provider.(rdma.RetryCounter)
	if !ok {
		return 0
	}
	return c.ConnectRetries(name)
}

// device is a NIC that is open while registries have it, and that they share.
type device struct {
	mu      sync.Mutex // held while the provider opens or closes it
	users   int
	closing bool // it did not close the first time
	dev     rdma.Device
	events  *events
}

// open opens the NIC, if it is not, for one more registry, which closes it.
func (d *Devices) open(name string) (*device, error) {
	d.mu.Lock()
	v := d.all[name]
	if v == nil {
		v = new(device)
		d.all[name] = v
	}
	d.mu.Unlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closing {
		return nil, fmt.Errorf("it does not close: %w", errdefs.ErrBusy)
	}
	if v.users == 0 {
		dev, err := d.provider.Open(name)
		if err != nil {
			return nil, err
		}
		v.dev, v.events = dev, new(events)
		v.events.start(dev)
	}
	v.users++
	return v, nil
}

// Close closes the NIC for one registry, which may call it again when it failed.
func (v *device) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.users == 1 {
		v.closing = true
		if err := errors.Join(v.events.stop(), v.dev.Close()); err != nil {
			return err
		}
		v.closing = false
	}
	v.users--
	return nil
}
