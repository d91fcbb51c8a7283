package nic_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/rdmatest"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/nic"
	"github.com/kvlane/kvlane/stream/softnic"
	"github.com/kvlane/kvlane/stream/streamtest"
)

var patience = testkit.Patience()

func deadline(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), patience)
	tb.Cleanup(cancel)
	return ctx
}

// copyMover copies a software NIC's bytes on copy streams of a device. It runs one transfer at a
// time, so that a failed transfer does not affect others.
type copyMover struct {
	dev  device.Device
	work chan *soft.Transfer
	done chan struct{}
}

func newCopyMover(dev device.Device) *copyMover {
	m := &copyMover{dev: dev, work: make(chan *soft.Transfer, 1024), done: make(chan struct{})}
	go m.run()
	return m
}

func (m *copyMover) Reaches(r *mem.Region) error {
	if r.Dev() == 0 && r.Kind() != mem.KindHost { // the NIC's own memory; not copied by these tests
		return fmt.Errorf("the device does not reach the %s: %w", r, errdefs.ErrNotSupported)
	}
	return nil
}

func (m *copyMover) Move(t *soft.Transfer) { m.work <- t }

func (m *copyMover) run() {
	defer close(m.done)
	var s *streamcopy.Stream
	for t := range m.work {
		var err error
		if s == nil {
			s, err = streamcopy.Open(m.dev, streamcopy.Options{Path: stream.PathKernel})
		}
		if err == nil {
			err = copyOnce(s, &t.Batch)
			if err != nil {
				err = errors.Join(err, s.Close(context.Background()))
				s = nil
			}
		}
		t.Done(err)
	}
	if s != nil {
		if err := s.Close(context.Background()); err != nil {
			panic(err)
		}
	}
}

func copyOnce(s *streamcopy.Stream, b *mem.Batch) error {
	ticket, err := s.Submit(context.Background(), b)
	if err != nil {
		return err
	}
	<-ticket.Done()
	return ticket.Err()
}

func (m *copyMover) close() {
	close(m.work)
	<-m.done
}

// rig is a simulated machine with a GPU and software NICs.
type rig struct {
	dev  device.Device
	prov rdma.Provider
	set  *registry.Set
	nics []*registry.Registry
}

type rigOptions struct {
	sim      sim.Options
	nics     int // default: 1
	soft     soft.Options
	registry registry.Options
	dev      device.Device // default: a simulated device
	null     bool          // the NICs copy no bytes
	stream   bool          // softnic.Mover copies the bytes
}

// streamMover returns the mover for GPUs, on a copy stream that chooses its paths. It is closed
// when the test ends.
func streamMover(tb testing.TB, dev device.Device) soft.Mover {
	tb.Helper()
	m := softnic.NewMover(func() (stream.Stream, error) { return streamcopy.Open(dev, streamcopy.Options{}) })
	tb.Cleanup(func() {
		if err := m.Close(deadline(tb)); err != nil {
			tb.Error(err)
		}
	})
	return m
}

// newRig opens a rig. It must close without an error when the test ends.
func newRig(tb testing.TB, o rigOptions) *rig {
	tb.Helper()
	g := &rig{dev: o.dev}
	var err error
	if g.dev == nil {
		if g.dev, err = sim.Open(o.sim); err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { closeOK(tb, g.dev) })
	}
	switch {
	case o.null:
		o.soft.Mover = rdmatest.NullMover{}
	case o.soft.Mover != nil:
	case o.stream:
		o.soft.Mover = streamMover(tb, g.dev)
	default:
		mover := newCopyMover(g.dev)
		o.soft.Mover = mover
		tb.Cleanup(mover.close)
	}
	for len(o.soft.Devices) < max(o.nics, 1) {
		o.soft.Devices = append(o.soft.Devices, soft.DeviceOptions{})
	}
	if g.prov, err = soft.New(o.soft); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { closeOK(tb, g.prov) })
	g.set = registry.NewDevices(g.prov).NewSet(o.registry)
	tb.Cleanup(func() { closeOK(tb, g.set) })
	names, err := g.prov.Devices()
	if err != nil {
		tb.Fatal(err)
	}
	for _, name := range names {
		n, err := g.set.NIC(name)
		if err != nil {
			tb.Fatal(err)
		}
		g.nics = append(g.nics, n)
	}
	return g
}

func closeOK(tb testing.TB, c interface{ Close() error }) {
	tb.Helper()
	if err := c.Close(); err != nil {
		tb.Error(err)
	}
}

// memory returns m with an Alloc that registers memory with the NICs.
func (g *rig) memory(m streamtest.Memory) streamtest.Memory {
	alloc := m.Alloc
	m.Alloc = func(tb testing.TB, bytes int64) *mem.Region {
		tb.Helper()
		r := alloc(tb, bytes)
		g.register(tb, r)
		return r
	}
	return m
}

// register registers r until the test ends.
func (g *rig) register(tb testing.TB, r *mem.Region) {
	tb.Helper()
	if err := registry.Register(g.nics, rdma.MROptions{Access: nic.Access}, r); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := registry.Unregister(deadline(tb), g.nics, r); err != nil {
			tb.Error(err)
		}
	})
}

func (g *rig) pinned(tb testing.TB, n int64) *mem.Region {
	tb.Helper()
	return g.memory(streamtest.Pinned(g.dev)).Alloc(tb, n)
}

func (g *rig) device(tb testing.TB, n int64) *mem.Region {
	tb.Helper()
	return g.memory(streamtest.DeviceMemory(g.dev)).Alloc(tb, n)
}

// options adds the rig's NICs to o.
func (g *rig) options(o nic.Options) nic.Options {
	for _, n := range g.nics {
		o.NICs = append(o.NICs, nic.NIC{Registry: n})
	}
	return o
}

// open opens a stream that the caller must close.
func (g *rig) open(tb testing.TB, o nic.Options) *nic.Stream {
	tb.Helper()
	s, err := nic.Open(g.options(o))
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// openUntilEnd opens a stream. Its Close must succeed when the test ends.
func (g *rig) openUntilEnd(tb testing.TB, o nic.Options) *nic.Stream {
	tb.Helper()
	s := g.open(tb, o)
	tb.Cleanup(func() {
		if err := s.Close(deadline(tb)); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// env returns the environment of the conformance suite.
func (g *rig) env(tb testing.TB, o nic.Options) streamtest.Env {
	tb.Helper()
	return streamtest.Env{
		Open: func(tb testing.TB, depth int) stream.Stream {
			tb.Helper()
			o := o
			o.QueueDepth = depth
			return g.open(tb, o)
		},
		A: g.memory(streamtest.Pinned(g.dev)), B: g.memory(streamtest.DeviceMemory(g.dev)), Path: stream.PathNICSoft,
		Unreachable: streamtest.Pageable(tb, 4096),
	}
}

func wantErr(tb testing.TB, err error, is ...error) {
	tb.Helper()
	for _, target := range is {
		if !errors.Is(err, target) {
			tb.Fatalf("error %v is not %q", err, target)
		}
	}
}
