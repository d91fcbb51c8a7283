package rpc_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/echo"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/softnic"
)

// Operations of a countedDevice that a plan can fail. Stalled copies are in progress until the plan
// releases them.
const (
	opOpenQueue = "open"
	opCallCopy  = "call-copy"
	opRecord    = "record"
	opCopies    = "copies"
	opRegister  = "register" // with a NIC
)

// countedDevice counts the calls that copy, by the kinds of their memory, and flushes.
type countedDevice struct {
	device.Device
	plan                              *fault.Plan
	flush                             func() error
	toHost, within, toDevice, flushes atomic.Int64
}

func (d *countedDevice) OpenQueue(o device.QueueOptions) (device.Queue, error) {
	if err := d.fails(opOpenQueue); err != nil {
		return nil, err
	}
	q, err := d.Device.OpenQueue(o)
	if err != nil {
		return nil, err
	}
	copier, ok := q.(device.BatchCopier)
	if !ok {
		return nil, fmt.Errorf("%T does not copy batches", q)
	}
	return &countedQueue{copier, d}, nil
}

func (d *countedDevice) fails(op string) error {
	f, _ := d.plan.Hit(op)
	return f.Err
}

// ExportDMABuf makes NICs register device memory as peer memory, unless the plan fails that.
func (d *countedDevice) ExportDMABuf(mem.Extent) (fd int, off int64, err error) {
	if err := d.fails(opRegister); err != nil {
		return 0, 0, err
	}
	return 0, 0, errdefs.ErrNotSupported
}

func (d *countedDevice) NeedsFlush() (bool, error) { return true, nil }

func (d *countedDevice) FlushRemoteWrites() error {
	d.flushes.Add(1)
	return d.flush()
}

func (d *countedDevice) count(dst, src mem.Extent) {
	switch from, to := src.Region.Kind() == mem.KindDevice, dst.Region.Kind() == mem.KindDevice; {
	case from && to:
		d.within.Add(1)
	case from:
		d.toHost.Add(1)
	case to:
		d.toDevice.Add(1)
	}
}

type countedQueue struct {
	device.BatchCopier
	d *countedDevice
}

func (q *countedQueue) Copy(dst, src mem.Extent) error {
	if err := q.d.fails(opCallCopy); err != nil {
		return err
	}
	q.d.count(dst, src)
	return q.BatchCopier.Copy(dst, src)
}

func (q *countedQueue) CopyBatch(dst, src []mem.Extent) error {
	if err := q.d.fails(opCallCopy); err != nil {
		return err
	}
	q.d.count(dst[0], src[0])
	return q.BatchCopier.CopyBatch(dst, src)
}

func (q *countedQueue) Record() (device.Event, error) {
	if err := q.d.fails(opRecord); err != nil {
		return nil, err
	}
	e, err := q.BatchCopier.Record()
	if f, hit := q.d.plan.Hit(opCopies); hit && err == nil {
		e = &faultyEvent{e, f}
	}
	return e, err
}

// faultyEvent is the event of copies that fail, or end when the plan releases them.
type faultyEvent struct {
	device.Event
	f fault.Fault
}

func (e *faultyEvent) Wait(ctx context.Context) error {
	if e.f.Action == fault.Stall {
		if err := e.f.Wait(ctx); err != nil {
			return err
		}
	}
	_, err := e.Done()
	return errors.Join(e.Event.Wait(ctx), err)
}

func (e *faultyEvent) Done() (bool, error) {
	if e.f.Action != fault.Stall {
		return true, e.f.Err
	}
	select {
	case <-e.f.Released():
		return e.Event.Done()
	default:
		return false, nil
	}
}

// fabric has NICs that reach the memory of a device.
type fabric struct {
	dev      *countedDevice
	provider rdma.Provider
	names    []string // of the NICs, which are opened in turns: the server's comes first
	opened   int      // NICs
	copies   stream.Stream
}

func newFabric(t *testing.T) *fabric {
	t.Helper()
	return newFabricWith(t, nil)
}

// newFabricWith returns a fabric with a mover of host memory, or of all memory if it is nil.
func newFabricWith(t *testing.T, mover soft.Mover) *fabric {
	t.Helper()
	d, err := sim.Open(sim.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return newFabricOn(t, d, mover)
}

// newFabricOn returns a fabric of any device.
func newFabricOn(t *testing.T, d device.Device, mover soft.Mover) *fabric {
	t.Helper()
	m := softnic.NewMover(func() (stream.Stream, error) { return streamcopy.Open(d, streamcopy.Options{}) })
	t.Cleanup(func() { must(t, m.Close(context.Background())) })
	if mover == nil {
		mover = m
	}
	p, err := soft.New(soft.Options{Mover: mover})
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	return newFabricOf(t, d, p, "soft0")
}

// newFabricOf returns a fabric of any device and NICs.
func newFabricOf(t *testing.T, d device.Device, p rdma.Provider, names ...string) *fabric {
	t.Helper()
	f := &fabric{dev: &countedDevice{Device: d, flush: func() error { return nil }}, provider: p, names: names}
	if x, ok := d.(device.RemoteWriteFlusher); ok {
		if needs, err := x.NeedsFlush(); err == nil && needs {
			f.dev.flush = x.FlushRemoteWrites
		}
	}
	var err error
	f.copies, err = streamcopy.Open(d, streamcopy.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, f.copies.Close(context.Background())) })
	return f
}

// nic opens the next NIC in a trust domain of its own.
func (f *fabric) nic(t *testing.T) *registry.Registry {
	t.Helper()
	set := registry.NewDevices(f.provider).NewSet(registry.Options{Exporter: f.dev})
	t.Cleanup(func() { must(t, set.Close()) })
	nic, err := set.NIC(f.names[f.opened%len(f.names)])
	f.opened++
	must(t, err)
	return nic
}

// memory returns hooks that allocate pinned memory.
func (f *fabric) memory() mem.ArenaHooks {
	return mem.ArenaHooks{Alloc: f.dev.AllocHost, Free: f.dev.Free}
}

// open opens RDMA with few and small regions. change may be nil.
func (f *fabric) open(t *testing.T, onDevice bool, change func(o *rpc.RDMAOptions)) *rpc.RDMA {
	t.Helper()
	o := rpc.RDMAOptions{Memory: f.memory(), BlockBytes: 8 << 10, RegionBytes: 1 << 20, Queue: 16, Stall: min(testkit.Patience(), 20*time.Second)}
	if onDevice {
		o.GPU = &rpc.GPUOptions{Device: f.dev, BlockBytes: 64 << 10, RegionBytes: 4 << 20}
	}
	if change != nil {
		change(&o)
	}
	if o.NIC == nil {
		o.NIC = f.nic(t)
	}
	r, err := rpc.OpenRDMA(o)
	must(t, err)
	t.Cleanup(func() { must(t, r.Close(context.Background())) })
	return r
}

// alloc returns device memory with the bytes, registered with a NIC.
func (f *fabric) alloc(t *testing.T, nic *registry.Registry, b []byte) *mem.Region {
	t.Helper()
	r, err := f.dev.Alloc(int64(len(b)), device.AllocOptions{})
	must(t, err)
	f.write(t, mem.All(r), b)
	if nic != nil {
		must(t, nic.Register(rdma.MROptions{Access: rpc.PlacementAccess}, r))
	}
	t.Cleanup(func() {
		if nic != nil {
			must(t, nic.Unregister(context.Background(), r))
		}
		must(t, f.dev.Free(r))
	})
	return r
}

// write copies bytes to device memory, and read from it.
func (f *fabric) write(t *testing.T, e mem.Extent, b []byte) { f.move(t, e, b, true) }

func (f *fabric) read(t *testing.T, e mem.Extent) []byte {
	b := make([]byte, e.Len)
	f.move(t, e, b, false)
	return b
}

func (f *fabric) move(t *testing.T, e mem.Extent, b []byte, write bool) {
	t.Helper()
	staging, err := f.dev.AllocHost(e.Len)
	must(t, err)
	defer func() { must(t, f.dev.Free(staging)) }()
	dst, src := e, mem.All(staging)
	if write {
		copy(staging.Bytes(), b)
	} else {
		dst, src = src, dst
	}
	k, err := f.copies.Submit(context.Background(), &mem.Batch{Dst: []mem.Extent{dst}, Src: []mem.Extent{src}})
	must(t, err)
	must(t, k.Wait(context.Background()))
	if !write {
		copy(b, staging.Bytes())
	}
}

// random returns bytes that depend on the seed.
func random(seed uint64, n int) []byte {
	rng, b := rand.New(rand.NewPCG(seed, 3)), make([]byte, (n+7)&^7)
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], rng.Uint64())
	}
	return b[:n]
}

// echoAttachments is a service that returns the message and the attachment.
func echoAttachments(t *testing.T, look func(c *rpc.Call) error) *rpc.Service {
	t.Helper()
	v, err := rpc.NewService(echo.File_rpc_echo_echo_proto.Services().Get(0), map[string]rpc.Handler{
		"Echo": func(ctx context.Context, m proto.Message) (proto.Message, error) {
			c := rpc.FromContext(ctx)
			if look != nil {
				if err := look(c); err != nil {
					return nil, err
				}
			}
			c.Reply.Attachment = c.Attachment.Cut(c.Attachment.Len())
			request, ok := m.(*echo.EchoRequest)
			if !ok {
				return nil, fmt.Errorf("%T is not an EchoRequest", m)
			}
			return &echo.EchoResponse{Message: request.Message}, nil
		},
	})
	must(t, err)
	return v
}
