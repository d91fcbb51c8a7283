package soft

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma"
)

// Device is an open software NIC. It implements rdma.Device.
type Device struct {
	owner
	nic    *nic
	events *mailbox[rdma.AsyncEvent] // unlimited, like the list in the kernel
}

var _ rdma.Device = (*Device)(nil)

func openDevice(n *nic) *Device {
	d := &Device{nic: n, events: newMailbox[rdma.AsyncEvent]("device")}
	d.open("device")
	n.mu.Lock()
	n.devices[d] = struct{}{}
	n.mu.Unlock()
	return d
}

// Info returns the properties of the device.
func (d *Device) Info() rdma.DeviceInfo { return d.nic.info }

// QueryPort returns the state of a port.
func (d *Device) QueryPort(number int) (rdma.PortInfo, error) {
	const call = "soft_query_port"
	p, err := d.port(OpQueryPort, call, number)
	if err != nil {
		return rdma.PortInfo{}, fmt.Errorf("query port %d of %s: %w", number, d.nic.info.Name, err)
	}
	info := rdma.PortInfo{
		Number: number, State: rdma.PortActive, LinkLayer: rdma.LinkLayerEthernet, MaxMTU: rdma.MTU4096, ActiveMTU: p.o.MTU,
		MaxMessageBytes: p.o.MaxMessageBytes, GIDs: len(p.o.GIDs), PKeys: 1,
	}
	if !p.active.Load() {
		info.State = rdma.PortDown
	}
	return info, nil
}

// QueryGID returns an entry of a port's GID table.
func (d *Device) QueryGID(number, index int) (rdma.GIDEntry, error) {
	const call = "soft_query_gid"
	fail := func(err error) (rdma.GIDEntry, error) {
		return rdma.GIDEntry{}, fmt.Errorf("query GID %d of port %d of %s: %w", index, number, d.nic.info.Name, err)
	}
	p, err := d.port(OpQueryGID, call, number)
	if err != nil {
		return fail(err)
	}
	if index < 0 || index >= len(p.o.GIDs) {
		return fail(rdma.NewError(call, fmt.Sprintf("index=%d", index), unix.EINVAL, fmt.Sprintf("the table has %d entries", len(p.o.GIDs))))
	}
	if p.o.GIDs[index] == (rdma.GID{}) {
		return fail(fmt.Errorf("the entry is empty: %w", errdefs.ErrNotFound))
	}
	return rdma.GIDEntry{Index: index, GID: p.o.GIDs[index], Type: p.o.GIDType}, nil
}

func (d *Device) port(op, call string, number int) (*port, error) {
	if err := d.fault(op, call); err != nil {
		return nil, err
	}
	if err := d.check(call); err != nil {
		return nil, err
	}
	return d.nic.port(call, number)
}

// SetPort activates or deactivates a port and sends the asynchronous event for the change. An
// inactive port exchanges no packets.
func (d *Device) SetPort(number int, active bool) error {
	p, err := d.nic.port("soft_set_port", number)
	if err != nil {
		return fmt.Errorf("set port %d of %s: %w", number, d.nic.info.Name, err)
	}
	if p.active.Swap(active) != active {
		e := rdma.AsyncEvent{Type: rdma.EventPortErr, Port: number}
		if active {
			e.Type = rdma.EventPortActive
		}
		d.nic.notify(e)
	}
	return nil
}

// WaitEvent waits for the next asynchronous event.
func (d *Device) WaitEvent(ctx context.Context) (rdma.AsyncEvent, error) {
	const call = "soft_get_async_event"
	err := d.fault(OpWaitEvent, call)
	if err == nil {
		var e rdma.AsyncEvent
		if e, err = d.events.wait(ctx, call); err == nil {
			return e, nil
		}
	}
	return rdma.AsyncEvent{}, fmt.Errorf("wait for event of %s: %w", d.nic.info.Name, err)
}

// Close closes the device.
func (d *Device) Close() error {
	const call = "soft_close_device"
	ended, err := d.shutdown(&d.owner, call)
	if err != nil {
		return fmt.Errorf("close device %s: %w", d.nic.info.Name, err)
	}
	if !ended {
		return nil
	}
	d.nic.mu.Lock()
	delete(d.nic.devices, d)
	d.nic.mu.Unlock()
	d.events.close()
	d.nic.prov.removeChild()
	return nil
}

// shutdown closes an object of the device. It is for objects that need not wait for transfers.
func (d *Device) shutdown(o *owner, call string) (ended bool, err error) {
	if o.closed.Load() {
		return false, nil
	}
	if err := d.fault(OpClose, call); err != nil {
		return false, err
	}
	return o.close(call)
}

func (d *Device) fault(op, call string) error { return d.nic.prov.fault(op, call) }

// begin starts a call that creates an object. It applies the fault plan, takes one unit of quota q
// and adds a child to parent.
func (d *Device) begin(op, call string, q *quota, most int, parent *owner) error {
	if err := d.fault(op, call); err != nil {
		return err
	}
	if err := q.take(call, most); err != nil {
		return err
	}
	if err := parent.adopt(call); err != nil {
		q.giveBack()
		return err
	}
	return nil
}
