package registry_test

import (
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// TestRightsAreNoMoreThanAskedFor checks that Acquire returns memory only if its rights are
// sufficient, and prefers the registration with the fewest rights.
func TestRightsAreNoMoreThanAskedFor(t *testing.T) {
	_, nics := machine(t, soft.Options{}, registry.Options{})
	g, r := nics[0], streamtest.Pageable(t, 8192)
	e := mem.Extent{Region: r, Off: 100, Len: 1000}
	const read, local, write = rdma.AccessRemoteRead, rdma.AccessLocalWrite, rdma.AccessRemoteWrite
	wants := func(need, want rdma.Access) {
		t.Helper()
		if !g.Covers(e, need) {
			t.Errorf("no registration covers %s", need)
		}
		m, err := g.Acquire(e, need)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Release()
		if got := m.Info().Access; got != want {
			t.Errorf("for %s memory with %s", need, got)
		}
	}
	if err := g.Register(rdma.MROptions{Access: read}, r); err != nil {
		t.Fatal(err)
	}
	wants(0, read)
	wants(read, read)
	if _, err := g.Acquire(e, local); err == nil || g.Covers(e, local) {
		t.Error("memory without the write right is returned for writing")
	} else {
		wantErr(t, err, errdefs.ErrNotFound)
	}
	wantErr(t, g.Register(rdma.MROptions{Access: read}, r), errdefs.ErrExists)
	// Remote write requires local write.
	wantErr(t, g.Register(rdma.MROptions{Access: write}, r), errdefs.ErrInvalid)
	if err := g.Register(all, r); err != nil {
		t.Fatal(err)
	}
	wants(read, read)
	wants(local, all.Access)
	wants(read|write, all.Access)
	if g.Len() != 2 || g.Stats().By[registry.MethodHost-1].Live != 2 {
		t.Errorf("%d registrations, %+v", g.Len(), g.Stats())
	}
	if err := g.Unregister(t.Context(), r); err != nil || g.Len() != 0 || g.Covers(e, 0) {
		t.Errorf("%d registrations are left, %v", g.Len(), err)
	}
}

// TestAddressOnTheWire checks that requests use the IOVA of memory, and that memory is found by its
// own address.
func TestAddressOnTheWire(t *testing.T) {
	_, nics := machine(t, soft.Options{}, registry.Options{})
	r := streamtest.Pageable(t, 8192)
	if err := nics[0].Register(rdma.MROptions{IOVA: new(uint64)}, r); err != nil {
		t.Fatal(err)
	}
	m, err := nics[0].Acquire(mem.Extent{Region: r, Off: 100, Len: 1000}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	if got := m.Addr(mem.Extent{Region: r, Off: 100}); got != 100 || m.Info().Addr != 0 {
		t.Errorf("byte 100 is at %#x", got)
	}
}
