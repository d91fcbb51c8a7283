package copy_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/nic"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// queueMover copies the bytes of a software NIC on a queue of the device. It runs one transfer at a
// time, so that a failed transfer does not affect others.
type queueMover struct {
	dev  device.Device
	work chan *soft.Transfer
	done chan struct{}
}

func newQueueMover(dev device.Device) *queueMover {
	m := &queueMover{dev: dev, work: make(chan *soft.Transfer, 1024), done: make(chan struct{})}
	go m.run()
	return m
}

func (m *queueMover) Reaches(r *mem.Region) error {
	if r.Dev() == 0 && r.Kind() != mem.KindHost { // the NIC's own memory; not copied by these tests
		return fmt.Errorf("the device does not reach the %s: %w", r, errdefs.ErrNotSupported)
	}
	return nil
}

func (m *queueMover) Move(t *soft.Transfer) { m.work <- t }

func (m *queueMover) run() {
	defer close(m.done)
	var q device.Queue
	closeQueue := func() error {
		if q == nil {
			return nil
		}
		err := q.Close(context.Background())
		if err != nil { // the error contains the cause, and the queue is closed
			err = errors.Join(err, q.Close(context.Background()))
		}
		q = nil
		return err
	}
	for t := range m.work {
		var err error
		if q == nil {
			q, err = m.dev.OpenQueue(device.QueueOptions{})
		}
		if err == nil {
			if err = moveOn(q, &t.Batch); err != nil {
				err = errors.Join(err, closeQueue())
			}
		}
		t.Done(err)
	}
	if err := closeQueue(); err != nil {
		panic(err)
	}
}

func moveOn(q device.Queue, b *mem.Batch) error {
	var errs []error
	for dst, src := range b.Extents() {
		errs = append(errs, q.Copy(dst, src))
	}
	e, err := q.Record()
	if err == nil {
		err = e.Wait(context.Background())
		e.Close()
	}
	return errors.Join(append(errs, err)...)
}

// nicRig holds the software NICs of a simulated machine.
type nicRig struct {
	dev  device.Device
	prov *soft.Provider
	nics []*registry.Registry
}

// newNICRig opens one NIC for each device of o, and at least one. The default Mover is a
// queueMover.
func newNICRig(tb testing.TB, dev device.Device, o soft.Options) *nicRig {
	tb.Helper()
	if o.Mover == nil {
		m := newQueueMover(dev)
		o.Mover = m
		tb.Cleanup(func() { close(m.work); <-m.done })
	}
	p, err := soft.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	set := registry.NewDevices(p).NewSet(registry.Options{})
	tb.Cleanup(func() {
		if err := errors.Join(set.Close(), p.Close()); err != nil {
			tb.Error(err)
		}
	})
	names, err := p.Devices()
	if err != nil {
		tb.Fatal(err)
	}
	g := &nicRig{dev: dev, prov: p}
	for _, name := range names {
		n, err := set.NIC(name)
		if err != nil {
			tb.Fatal(err)
		}
		g.nics = append(g.nics, n)
	}
	return g
}

// carrier returns a Carrier that gives streams access to the NICs.
func (g *nicRig) carrier(o nic.Options) *streamcopy.Carrier {
	for _, n := range g.nics {
		o.NICs = append(o.NICs, nic.NIC{Registry: n})
	}
	return &streamcopy.Carrier{
		Path: stream.PathNICSoft,
		Open: func() (stream.Stream, error) { return nic.Open(o) },
		Reaches: func(r *mem.Region) bool {
			for _, n := range g.nics {
				if !n.Covers(mem.All(r), nic.Access) {
					return false
				}
			}
			return true
		},
	}
}

// memory returns m with an Alloc that registers memory with the NICs.
func (g *nicRig) memory(m streamtest.Memory) streamtest.Memory {
	alloc := m.Alloc
	m.Alloc = func(tb testing.TB, bytes int64) *mem.Region {
		tb.Helper()
		r := alloc(tb, bytes)
		g.register(tb, r)
		return r
	}
	return m
}

// register registers r with the NICs until the test ends.
func (g *nicRig) register(tb testing.TB, r *mem.Region) {
	tb.Helper()
	if err := registry.Register(g.nics, rdma.MROptions{Access: nic.Access}, r); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := registry.Unregister(ctx, g.nics, r); err != nil {
			tb.Error(err)
		}
	})
}

// pinned and device allocate registered memory.
func (g *nicRig) pinned(tb testing.TB, n int64) *mem.Region {
	tb.Helper()
	return g.memory(streamtest.Pinned(g.dev)).Alloc(tb, n)
}

func (g *nicRig) device(tb testing.TB, n int64) *mem.Region {
	tb.Helper()
	return g.memory(streamtest.DeviceMemory(g.dev)).Alloc(tb, n)
}

// env returns the environment of the conformance suite on the rig.
func (g *nicRig) env(t *testing.T, plan *fault.Plan, work string, o streamcopy.Options) streamtest.Env {
	t.Helper()
	e := env(t, g.dev, o)
	e.A, e.B, e.Plan, e.Work = g.memory(e.A), g.memory(e.B), plan, work
	return e
}
