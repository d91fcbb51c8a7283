package ibv

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/ibverbs"
	"github.com/kvlane/kvlane/rdma"
)

// Device implements rdma.Device: a verbs context.
type Device struct {
	object
	provider *Provider
	api      *ibverbs.API
	ctx      ibverbs.Context
	info     rdma.DeviceInfo
	vectors  int
	events   *watch
	retries  *atomic.Int64 // see Provider.ConnectRetries

	mu  sync.Mutex
	cqs map[ibverbs.CQ]*CQ // open completion queues by native handle, to find the queue of an event
}

func openDevice(p *Provider, dev ibverbs.Device, devName string) (*Device, error) {
	ctx, errno := p.api.OpenDevice(dev)
	if err := check(errno, "ibv_open_device", "device=%s", devName); err != nil {
		return nil, err
	}
	d := &Device{provider: p, api: p.api, ctx: ctx, vectors: p.api.CompVectors(ctx), retries: p.retriesOf(devName), cqs: make(map[ibverbs.CQ]*CQ)}
	err := d.start(devName)
	if err != nil {
		return nil, errors.Join(err, d.stop())
	}
	d.open("RDMA device %s", devName)
	p.children.Add(1) // the caller uses the provider
	return d, nil
}

// start reads the properties of the device and watches its events.
func (d *Device) start(devName string) error {
	var a ibverbs.DeviceAttr
	if err := check(d.api.QueryDevice(d.ctx, &a), "ibv_query_device", "device=%s", devName); err != nil {
		return err
	}
	d.info = deviceInfo(devName, &a)
	var err error
	d.events, err = newWatch(d.api.AsyncFD(d.ctx), devName+" events")
	return err
}

func (d *Device) stop() error {
	if d.events != nil {
		if err := d.events.close(); err != nil {
			return err
		}
	}
	return check(d.api.CloseDevice(d.ctx), "ibv_close_device", "device=%s", d.info.Name)
}

// Info implements rdma.Device.
func (d *Device) Info() rdma.DeviceInfo { return d.info }

// QueryPort implements rdma.Device.
func (d *Device) QueryPort(port int) (rdma.PortInfo, error) {
	fail := func(err error) (rdma.PortInfo, error) {
		return rdma.PortInfo{}, fmt.Errorf("query port %d of %s: %w", port, d.what, err)
	}
	if err := d.beginCall(); err != nil {
		return fail(err)
	}
	defer d.endCall()
	if err := d.checkPort(port); err != nil {
		return fail(err)
	}
	var a ibverbs.PortAttr
	if err := check(d.api.QueryPort(d.ctx, uint8(port), &a), "ibv_query_port", "port=%d", port); err != nil {
		return fail(err)
	}
	return portInfo(port, &a), nil
}

func (d *Device) checkPort(port int) error {
	if port < 1 || port > d.info.Ports {
		return fmt.Errorf("the device has ports 1 to %d: %w", d.info.Ports, errdefs.ErrInvalid)
	}
	return nil
}

// QueryGID implements rdma.Device.
func (d *Device) QueryGID(port, index int) (rdma.GIDEntry, error) {
	fail := func(err error) (rdma.GIDEntry, error) {
		return rdma.GIDEntry{}, fmt.Errorf("query GID %d of port %d of %s: %w", index, port, d.what, err)
	}
	// The library returns the same errno for an index beyond the table and an empty entry.
	p, err := d.QueryPort(port)
	if err != nil {
		return fail(err)
	}
	if index < 0 || index >= p.GIDs {
		return fail(fmt.Errorf("the table has %d entries: %w", p.GIDs, errdefs.ErrInvalid))
	}
	if err := d.beginCall(); err != nil {
		return fail(err)
	}
	defer d.endCall()
	var e ibverbs.GIDEntry
	errno := d.api.QueryGIDEx(d.ctx, uint32(port), uint32(index), &e)
	if errno == unix.ENODATA || errno == 0 && e.GID == [16]byte{} {
		return fail(fmt.Errorf("the entry is empty: %w", errdefs.ErrNotFound))
	}
	if err := check(errno, "ibv_query_gid_ex", "port=%d index=%d", port, index); err != nil {
		return fail(err)
	}
	return rdma.GIDEntry{Index: index, GID: e.GID, Type: rdma.GIDType(e.Type)}, nil
}

// WaitEvent implements rdma.Device.
func (d *Device) WaitEvent(ctx context.Context) (rdma.AsyncEvent, error) {
	var event rdma.AsyncEvent
	err := d.events.wait(ctx, func() (bool, error) {
		e, errno := d.api.GetAsyncEvent(d.ctx)
		if errno == unix.EAGAIN {
			return false, nil
		}
		if err := check(errno, "ibv_get_async_event", "device=%s", d.info.Name); err != nil {
			return false, err
		}
		// The library keeps the event's object alive until the event is acknowledged.
		event = d.asyncEvent(e)
		d.api.AckAsyncEvent(e)
		return true, nil
	})
	if err != nil {
		return rdma.AsyncEvent{}, fmt.Errorf("wait for event of %s: %w", d.what, err)
	}
	return event, nil
}

func (d *Device) asyncEvent(e ibverbs.AsyncEvent) rdma.AsyncEvent {
	event := rdma.AsyncEvent{Type: rdma.EventType(e.Type)}
	switch event.Type {
	case rdma.EventCQErr:
		if q := d.cqOf(ibverbs.CQ(e.Element)); q != nil {
			event.CQ = q
		}
	case rdma.EventQPFatal, rdma.EventQPReqErr, rdma.EventQPAccessErr, rdma.EventCommEst, rdma.EventSQDrained,
		rdma.EventPathMig, rdma.EventPathMigErr, rdma.EventQPLastWQEReached:
		event.QPNum = d.api.QPNum(ibverbs.QP(e.Element))
	case rdma.EventPortActive, rdma.EventPortErr, rdma.EventLIDChange, rdma.EventPKeyChange, rdma.EventSMChange,
		rdma.EventClientReregister, rdma.EventGIDChange:
		event.Port = int(int32(uint32(e.Element)))
	default: // events of the whole device, and unknown ones
	}
	return event
}

// cqOf returns the open completion queue of native, or nil.
func (d *Device) cqOf(native ibverbs.CQ) *CQ {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cqs[native]
}

// Close implements rdma.Device.
func (d *Device) Close() error {
	return d.close(d.stop, func() error {
		d.provider.release()
		return nil
	})
}
