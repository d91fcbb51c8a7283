package sim_test

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
)

var patience = testkit.Patience()

// rig is a device under test. Nothing is closed or freed automatically unless a comment states it,
// because many tests test just that.
type rig struct {
	t *testing.T
	*sim.Device
}

// open opens a device. When the test ends it is closed, and errors of that are ignored.
func open(t *testing.T, o sim.Options) rig {
	t.Helper()
	d, err := sim.Open(o)
	must(t, err)
	t.Cleanup(func() { _ = d.Close() })
	return rig{t, d}
}

func manual(t *testing.T, o sim.Options) rig {
	t.Helper()
	o.Interleave = &sim.Interleave{Seed: 1, Manual: true}
	return open(t, o)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r rig) dev(n int64) *mem.Region {
	r.t.Helper()
	reg, err := r.Alloc(n, device.AllocOptions{})
	must(r.t, err)
	return reg
}

func (r rig) pin(n int64) *mem.Region {
	r.t.Helper()
	reg, err := r.AllocHost(n)
	must(r.t, err)
	return reg
}

// adopt adopts q as a stream of the host program.
func (r rig) adopt(q *sim.Queue) device.HostStream {
	r.t.Helper()
	st, err := r.AdoptStream(q.Handle())
	must(r.t, err)
	return st
}

func (r rig) queue() *sim.Queue {
	r.t.Helper()
	q, err := r.OpenQueue(device.QueueOptions{})
	must(r.t, err)
	return asQueue(r.t, q)
}

// asQueue returns q as a *sim.Queue.
func asQueue(tb testing.TB, q device.Queue) *sim.Queue {
	tb.Helper()
	sq, ok := q.(*sim.Queue)
	if !ok {
		tb.Fatalf("a simulated device opened a %T", q)
	}
	return sq
}

// event records an event and closes it at the end of the test.
func (r rig) event(q device.Queue) device.Event {
	r.t.Helper()
	e, err := q.Record()
	must(r.t, err)
	r.t.Cleanup(e.Close)
	return e
}

// sync runs all enqueued work and returns the queue's error.
func (r rig) sync(q device.Queue) error {
	r.t.Helper()
	e := r.event(q)
	r.StepAll()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	return e.Wait(ctx)
}

// read returns the bytes of device memory.
func (r rig) read(reg *mem.Region) []byte {
	r.t.Helper()
	q, p := r.queue(), r.pin(reg.Len())
	must(r.t, q.Copy(mem.All(p), mem.All(reg)))
	must(r.t, r.sync(q))
	return p.Bytes()
}

func ext(r *mem.Region, off, n int64) mem.Extent { return mem.Extent{Region: r, Off: off, Len: n} }

func launch(name string, args ...uint64) *device.Kernel {
	k := &device.Kernel{Name: name, NArgs: len(args)}
	copy(k.Args[:], args)
	return k
}

// words writes 64-bit words into pinned memory.
func words(r *mem.Region, off int, w ...uint64) {
	for i, v := range w {
		binary.LittleEndian.PutUint64(r.Bytes()[off+8*i:], v)
	}
}

func count(b []byte, v byte) int {
	n := 0
	for _, x := range b {
		if x == v {
			n++
		}
	}
	return n
}
