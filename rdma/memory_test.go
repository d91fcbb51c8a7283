package rdma_test

import (
	"testing"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

// Host-pinned memory has two addresses. Work requests use the device address.
func TestOwnAddr(t *testing.T) {
	b := make([]byte, 64)
	for _, c := range []struct {
		spec mem.RegionSpec
		want uint64
	}{
		{mem.RegionSpec{Kind: mem.KindHost, Device: mem.NoDevice, Len: 64, CPU: 0x1000, Bytes: b}, 0x1008},
		{mem.RegionSpec{Kind: mem.KindHostPinned, Len: 64, CPU: 0x1000, Dev: 0x2000, Bytes: b}, 0x2008},
		{mem.RegionSpec{Kind: mem.KindDevice, Len: 64, Dev: 0x2000}, 0x2008},
	} {
		r, err := mem.NewRegion(c.spec)
		if err != nil {
			t.Fatal(err)
		}
		if got := rdma.OwnAddr(mem.All(r).Sub(8, 8)); got != c.want {
			t.Errorf("%s: %#x, want %#x", r, got, c.want)
		}
	}
}
