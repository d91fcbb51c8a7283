package blockio

import (
	"context"
	"errors"
	"testing"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
)

// pinnedSlots returns the slots of a client whose memory is that of the simulated device. Its
// host-pinned memory has two addresses that differ.
func pinnedSlots(t *testing.T) (*slots, *sim.Device) {
	t.Helper()
	p, err := soft.New(soft.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	set := registry.NewDevices(p).NewSet(registry.Options{})
	t.Cleanup(func() { must(t, set.Close()) })
	nic, err := set.NIC("soft0")
	must(t, err)
	dev, err := sim.Open(sim.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, dev.Close()) })
	s, err := openSlots(&ClientOptions{
		Limits: DefaultLimits(), BatchEntries: 8, RDMA: &RDMAOptions{NIC: nic, Memory: mem.BufferHooks{Alloc: dev.AllocHost, Free: dev.Free}},
	})
	must(t, err)
	t.Cleanup(func() { must(t, s.close(context.Background())) })
	return s, dev
}

// prepared returns a call for host-pinned memory, with its slots.
func prepared(t *testing.T, s *slots, dev *sim.Device) (*call, *mem.Region) {
	t.Helper()
	r, err := dev.AllocHost(8192)
	must(t, err)
	nics := []*registry.Registry{s.o.NIC}
	must(t, registry.Register(nics, rdma.MROptions{Access: PeerAccess}, r))
	t.Cleanup(func() {
		must(t, registry.Unregister(context.Background(), nics, r))
		must(t, dev.Free(r))
	})
	k := &call{
		request: Request{Op: OpRetrieve, ID: 7, RemainingMillis: 10, Entries: []Entry{{Key: key(1), Identity: 1, Length: 4096}}},
		extents: []mem.Extent{{Region: r, Off: 4096, Len: 4096}},
	}
	if !s.prepare(k) {
		t.Fatal("a call for registered memory is not sent by RDMA")
	}
	t.Cleanup(func() { must(t, s.release(k.remote)) })
	return k, r
}

func TestHostPinnedRegistersDeviceAddress(t *testing.T) {
	s, _ := pinnedSlots(t)
	for _, b := range []*mem.Buffers{s.sends, s.flags} {
		r := b.Region()
		m, err := s.o.NIC.Acquire(mem.All(r), PeerAccess)
		must(t, err)
		m.Release()
		if got := m.Info().Addr; got != uint64(r.Dev()) || got == uint64(r.CPU()) {
			t.Errorf("the NIC has %#x for the %s", got, r)
		}
		if a := m.Info().Access; a&rdma.AccessRelaxedOrdering != 0 { // writes before the completion word could follow it
			t.Errorf("the %s is registered for %s", r, a)
		}
	}
}

func TestBuildSubBatchSendBuffersUsesHostPinnedDeviceAddresses(t *testing.T) {
	s, dev := pinnedSlots(t)
	k, r := prepared(t, s, dev)
	wr := sendRequest(k.remote.send)
	first := s.sends.Region()
	if at := wr.SGEs[0].Addr; at != uint64(k.remote.send.Dev) || at < uint64(first.Dev()) || at >= uint64(first.Dev())+uint64(first.Len()) {
		t.Errorf("the request is sent from %#x, the slots are the %s", at, first)
	}
	if e := k.request.Entries[0]; e.Addr != r.Dev()+4096 || e.MemoryKey == 0 {
		t.Errorf("the entry has address %#x and key %d for the %s", e.Addr, e.MemoryKey, r)
	}
}

func TestPackedResponseAddressEqualsTheFlagsDeviceAddress(t *testing.T) {
	s, dev := pinnedSlots(t)
	k, _ := prepared(t, s, dev)
	var p Packer
	l := DefaultLimits()
	b, err := p.Request(nil, &k.request, &l)
	must(t, err)
	if got := mem.DevAddr(le.Uint64(b[24:])); got != k.remote.flag.Dev || uint64(got) == uint64(k.remote.flag.CPU) {
		t.Errorf("the packed response address is %#x, the flag has %#x and CPU address %#x", got, k.remote.flag.Dev, k.remote.flag.CPU)
	}
	if got := le.Uint32(b[20:]); got != k.remote.flag.Key {
		t.Errorf("the packed response key is %d, the flag has %d", got, k.remote.flag.Key)
	}
}

// Memory that is not registered, and calls without a slot, are sent over the connection. Their
// entries have no addresses then.
func TestCallsThatRDMACannotCarry(t *testing.T) {
	s, dev := pinnedSlots(t)
	k, r := prepared(t, s, dev)
	other, err := dev.AllocHost(4096)
	must(t, err)
	t.Cleanup(func() { must(t, dev.Free(other)) })
	check := func(what string, e mem.Extent) {
		t.Helper()
		before := s.sends.Stats().Lent
		fresh := &call{request: k.request, extents: []mem.Extent{k.extents[0], e}}
		fresh.request.Addressed, fresh.request.Entries = false, make([]Entry, 2)
		if s.prepare(fresh) || fresh.request.Addressed || fresh.request.Entries[0].Addr != 0 || s.sends.Stats().Lent != before {
			t.Errorf("%s: the call has addresses or slots", what)
		}
	}
	check("memory that is not registered", mem.All(other))
	for {
		b, err := s.flags.TryAcquire(64)
		if errors.Is(err, errdefs.ErrBusy) {
			break
		}
		must(t, err)
		t.Cleanup(func() { must(t, s.flags.Release(b)) })
	}
	check("no flag", k.extents[0])
	_ = r
}

func TestPiecesThatRDMANeeds(t *testing.T) {
	device := func(n int64) mem.Extent {
		r, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Len: n, Dev: 1 << 40})
		must(t, err)
		return mem.All(r)
	}
	o := &RDMAOptions{Flush: func(int) error { return nil }, Sum: func(mem.Extent) (uint64, error) { return 0, nil }}
	must(t, o.checkPiece(device(MinDeviceBytes)))
	for what, err := range map[string]error{
		"a short piece": o.checkPiece(device(MinDeviceBytes - 1)), "no RDMA": (*RDMAOptions)(nil).checkPiece(device(1 << 20)),
		"no flush": (&RDMAOptions{Sum: o.Sum}).checkPiece(device(1 << 20)), "no checksum": (&RDMAOptions{Flush: o.Flush}).checkPiece(device(1 << 20)),
	} {
		if !errors.Is(err, errdefs.ErrNotSupported) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
