package soft

import (
	"testing"

	"github.com/kvlane/kvlane/mem"
)

// Equal addresses are the same memory only if both are CPU addresses or both are device addresses.
func TestMeet(t *testing.T) {
	region := func(s mem.RegionSpec) mem.Extent {
		s.Len = 64
		if s.CPU != 0 {
			s.Bytes = make([]byte, s.Len)
		}
		r, err := mem.NewRegion(s)
		if err != nil {
			t.Fatal(err)
		}
		return mem.All(r)
	}
	host := region(mem.RegionSpec{Kind: mem.KindHost, Device: mem.NoDevice, CPU: 0x1000})
	pinned := region(mem.RegionSpec{Kind: mem.KindHostPinned, CPU: 0x1020, Dev: 0x2000})
	gpu := region(mem.RegionSpec{Kind: mem.KindDevice, Dev: 0x1000})
	for _, c := range []struct {
		x, y mem.Extent
		want bool
	}{
		{host, host, true},
		{gpu, gpu, true},
		{host, pinned, true},
		{host, gpu, false},
		{pinned, gpu, false},
		{host.Sub(0, 32), pinned, false},
		{gpu.Sub(0, 32), gpu.Sub(32, 32), false},
		{gpu.Sub(0, 33), gpu.Sub(32, 32), true},
	} {
		if intersect(c.x, c.y) != c.want || intersect(c.y, c.x) != c.want {
			t.Errorf("%+v and %+v: want %t", c.x, c.y, c.want)
		}
	}
}
