package gdr

import (
	"context"
	"errors"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
)

// A domain is a separate use of the first NIC: other domains do not have its memory.
func TestDomainHasItsOwnMemory(t *testing.T) {
	n, err := Open(nil, Config{Provider: Soft, Count: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := hostmem.Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}
	r, err := hostmem.Region(b)
	if err != nil {
		t.Fatal(err)
	}
	var all [2]*Domain
	for i := range all {
		if all[i], err = n.OpenDomain(); err != nil {
			t.Fatal(err)
		}
	}
	d := all[0]
	const access = rdma.AccessLocalWrite | rdma.AccessRemoteWrite
	if err := d.NIC.Register(rdma.MROptions{Access: access}, r); err != nil {
		t.Fatal(err)
	}
	if d.NIC.Name() != n.Choices()[0].Name || d.Reason != n.Choices()[0].Reason || d.Connect.Port == 0 {
		t.Errorf("domain %+v of NIC %s", d, d.NIC.Name())
	}
	if !d.NIC.Covers(mem.All(r), access) || all[1].NIC.Covers(mem.All(r), access) {
		t.Error("the memory is not registered with its domain alone")
	}
	m, err := d.NIC.Acquire(mem.All(r), access)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("closed with memory in use: %v", err)
	}
	m.Release()
	closed(t, registry.Unregister(context.Background(), []*registry.Registry{d.NIC}, r))
	closed(t, d.Close())
	closed(t, all[1].Close())
	closed(t, n.Close(context.Background()))
	closed(t, hostmem.Free(b))
}
