package nic_test

import (
	"errors"
	"testing"

	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/stream/nic"
)

// TestHostPinnedRegistersDeviceAddress checks that NICs register host-pinned memory by its device
// address, find it by that address, and copy its bytes. Pinned memory may start within a page.
func TestHostPinnedRegistersDeviceAddress(t *testing.T) {
	g := newRig(t, rigOptions{})
	b, err := hostmem.Alloc(1 << 14)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hostmem.Free(b) })
	r, err := g.dev.RegisterHost(b[192 : 192+8192 : 192+8192])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.dev.Free(r); err != nil {
			t.Error(err)
		}
	})
	g.register(t, r)
	if uint64(r.CPU()) == uint64(r.Dev()) {
		t.Fatalf("the %s has one address", r)
	}
	e := mem.All(r).Sub(64, 128)
	m, err := g.nics[0].Acquire(e, rdma.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	if m.Info().Addr != uint64(r.Dev()) || m.Addr(e) != uint64(e.Dev()) {
		t.Errorf("registered at %#x, bytes at %#x, want %#x and %#x", m.Info().Addr, m.Addr(e), r.Dev(), e.Dev())
	}
	sameAtCPU, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindHost, Device: mem.NoDevice, Len: r.Len(), CPU: r.CPU(), Bytes: r.Bytes()})
	if err != nil {
		t.Fatal(err)
	}
	if g.nics[0].Covers(mem.All(sameAtCPU), rdma.AccessLocalWrite) {
		t.Error("host-pinned memory is found by its CPU address")
	}
	copiesBytes(t, g.openUntilEnd(t, nic.Options{}), r, g.device(t, 1000), g.pinned(t, 1000), 20, 8)
}

// TestBuffersRegisterDeviceAddress checks that the entries of buffers have the registered addresses
// and keys, and that freeing the buffers leaves nothing registered.
func TestBuffersRegisterDeviceAddress(t *testing.T) {
	g := newRig(t, rigOptions{})
	n := g.nics[0]
	access := rdma.AccessLocalWrite | rdma.AccessRemoteWrite // without relaxed ordering: the CPU polls flags
	b, err := mem.NewBuffers(mem.BufferOptions{Kind: mem.KindHostPinned, Count: 5, Capacity: 71, Hooks: mem.BufferHooks{
		Alloc: g.dev.AllocHost, Free: g.dev.Free,
		Register: func(r *mem.Region) (uint32, error) {
			if err := n.Register(rdma.MROptions{Access: access}, r); err != nil {
				return 0, err
			}
			m, err := n.Acquire(mem.All(r), access)
			if err != nil {
				return 0, err
			}
			defer m.Release()
			return m.Info().RKey, nil
		},
		Deregister: n.Unregister,
	}})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		x, err := b.TryAcquire(71)
		if err != nil {
			t.Fatal(err)
		}
		e, err := b.Extent(x)
		if err != nil {
			t.Fatal(err)
		}
		m, err := n.Acquire(e, access)
		if err != nil {
			t.Fatal(err)
		}
		if m.Addr(e) != uint64(x.Dev) || m.Info().RKey != x.Key || uint64(x.CPU) == uint64(x.Dev) {
			t.Errorf("entry %+v, registered at %#x with key %#x", x, m.Addr(e), m.Info().RKey)
		}
		m.Release()
		if err := errors.Join(x.CheckReady(), b.Release(x)); err != nil {
			t.Error(err)
		}
	}
	r := b.Region()
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n.Covers(mem.All(r), access) {
		t.Error("freed memory is registered")
	}
}

// TestAdjacentRegions checks that copies to adjacent bytes of two regions with different keys are
// two requests.
func TestAdjacentRegions(t *testing.T) {
	g := newRig(t, rigOptions{})
	b, err := hostmem.Alloc(8192)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hostmem.Free(b) })
	whole, err := g.dev.RegisterHost(b) // the halves are adjacent at both addresses
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.dev.Free(whole); err != nil {
			t.Error(err)
		}
	})
	var half [2]*mem.Region
	for i := range half {
		at := int64(i) * 4096
		half[i], err = mem.NewRegion(mem.RegionSpec{
			Kind: mem.KindHostPinned, Device: whole.Device(), Len: 4096, CPU: whole.CPU() + mem.CPUAddr(at), Dev: whole.Dev() + mem.DevAddr(at), Bytes: b[at : at+4096 : at+4096],
		})
		if err != nil {
			t.Fatal(err)
		}
		g.register(t, half[i])
	}
	src := g.pinned(t, 1024)
	for i := range src.Bytes() {
		src.Bytes()[i] = byte(i)
	}
	s := g.openUntilEnd(t, nic.Options{})
	ok(t, submit(t, s, &mem.Batch{
		Dst: []mem.Extent{{Region: half[0], Off: 3584, Len: 512}, {Region: half[1], Off: 0, Len: 512}},
		Src: []mem.Extent{{Region: src, Off: 0, Len: 512}, {Region: src, Off: 512, Len: 512}},
	}))
	for i, v := range b[3584 : 3584+1024] {
		if v != byte(i) {
			t.Fatalf("byte %d is %d", i, v)
		}
	}
}
