package mem_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

func TestCacheIsChecked(t *testing.T) {
	for name, tt := range map[string]struct {
		device int
		addrs  []mem.DevAddr
		sizes  []uint64
		says   []string
	}{
		"lengths":            {0, []mem.DevAddr{1, 2}, []uint64{1}, []string{"2 addresses and 1 sizes"}},
		"zero address":       {0, []mem.DevAddr{0x1000, 0}, []uint64{8, 8}, []string{"tensor 1 has no address"}},
		"zero size":          {0, []mem.DevAddr{0x1000}, []uint64{0}, []string{"tensor 0 has no bytes"}},
		"overlap":            {0, []mem.DevAddr{0x2000, 0x1000}, []uint64{8, 0x1001}, []string{"tensors 1 and 0 overlap"}},
		"twice the same":     {0, []mem.DevAddr{0x1000, 0x1000}, []uint64{8, 8}, []string{"overlap"}},
		"device":             {-1, []mem.DevAddr{0x1000}, []uint64{8}, []string{"device -1"}},
		"end of space":       {0, []mem.DevAddr{1<<64 - 4}, []uint64{8}, []string{"beyond the address space"}},
		"everything at once": {-2, []mem.DevAddr{0, 0x1000, 0x1004}, []uint64{4, 8, 8, 0}, []string{"3 addresses", "device -2", "tensor 0", "overlap"}},
	} {
		regions, err := mem.CacheRegions(tt.device, tt.addrs, tt.sizes)
		if regions != nil || !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, part := range tt.says {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not say %q", name, err, part)
			}
		}
	}
	regions, err := mem.CacheRegions(5, []mem.DevAddr{0x3000, 0x1000, 0x2000}, []uint64{0x1000, 0x1000, 0x1000})
	if err != nil || len(regions) != 3 || regions[1].Dev() != 0x1000 || regions[1].Device() != 5 || regions[1].Len() != 0x1000 {
		t.Errorf("regions %v, %v", regions, err)
	}
}
