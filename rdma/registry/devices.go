package registry

import (
	"errors"
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma"
)

// Devices opens the NICs of a provider for several sets. Each NIC is opened once and closed when
// its last user closes it. Devices is safe for concurrent use. Opening a NIC blocks while another
// set opens or closes it.
type Devices struct {
	provider rdma.Provider

	mu  sync.Mutex // not held during calls of the provider
	all map[string]*device
}

// NewDevices returns Devices without open NICs. The provider must outlive all sets.
func NewDevices(p rdma.Provider) *Devices {
	return &Devices{provider: p, all: make(map[string]*device)}
}

// NewSet returns a set without open NICs.
func (d *Devices) NewSet(o Options) *Set { return &Set{devices: d, o: o} }

// ConnectRetries returns the number of times that the provider retried to connect a queue pair of
// the NIC, for all users (see rdma.RetryCounter).
func (d *Devices) ConnectRetries(name string) int64 {
	c, ok := d.provider.(rdma.RetryCounter)
	if !ok {
		return 0
	}
	return c.ConnectRetries(name)
}

// device is a NIC that several registries share. It stays open while it has users.
type device struct {
	mu      sync.Mutex // held while the provider opens or closes it
	users   int
	closing bool // a close has failed or is in progress
	dev     rdma.Device
	events  *events
}

// open returns the NIC for one more registry. It opens the NIC on first use. The registry must
// close it.
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
		return nil, fmt.Errorf("it could not be closed: %w", errdefs.ErrBusy)
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

// Close ends the use of the NIC by one registry. After an error the registry may retry.
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
