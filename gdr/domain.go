package gdr

import (
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
)

// Domain is a NIC with registered memory of its own. Queue pairs of other domains cannot access the
// memory. It is safe for concurrent use.
type Domain struct {
	NIC     *registry.Registry
	Connect rdma.ConnectOptions // port, address and MTU of connections
	Reason  string              // that of Choice
	// Flush makes writes of the NIC visible to the device. Nil: they are visible, or it has no device.
	Flush func(device int) error

	set *registry.Set
}

// OpenDomain opens the first of the NICs for connections to other processes. The caller closes the
// domain before the NICs.
func (n *NICs) OpenDomain() (_ *Domain, err error) {
	if len(n.chosen) == 0 {
		return nil, fmt.Errorf("open a domain without a NIC: %w", errdefs.ErrInvalid)
	}
	d := &Domain{Reason: n.chosen[0].Reason, Flush: n.flush, set: n.source.NewSet(n.how)}
	if d.NIC, err = d.set.NIC(n.chosen[0].Name); err != nil {
		return nil, err
	}
	port, err := n.port(d.NIC)
	if err != nil {
		_ = d.Close() // it has no memory
		return nil, err
	}
	d.Connect = rdma.ConnectOptions{Port: port.Number, GIDIndex: port.GIDIndex, MTU: port.MTU}
	return d, nil
}

// Port returns the options that select the port, address and MTU of Connect.
func (d *Domain) Port() rdma.PortOptions {
	return rdma.PortOptions{Port: d.Connect.Port, GIDIndex: &d.Connect.GIDIndex, MTU: d.Connect.MTU}
}

// Close closes the NIC. It returns ErrBusy while memory is in use or queue pairs are open, and may
// be called again.
func (d *Domain) Close() error { return d.set.Close() }
