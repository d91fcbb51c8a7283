package describe

import (
	"testing"

	"github.com/kvlane/kvlane/mem"
)

// TestLayerLeft checks that the rest of a layer is the part that is not yet described, and that
// only groups with the same blocks count as layers.
func TestLayerLeft(t *testing.T) {
	pairs, others := make([]mem.PageSlot, 10), make([]mem.PageSlot, 10)
	planes := []mem.Plane{{Bytes: 100}, {Bytes: 20}}
	group := func(p []mem.PageSlot) mem.PageGroup { return mem.PageGroup{Planes: planes, Pairs: p} }
	tell := func(int, bool) {}
	for name, tt := range map[string]struct {
		at     Cursor
		groups []mem.PageGroup
		landed func(int, bool)
		want   int64
		ok     bool
	}{
		"the first":       {Cursor{}, []mem.PageGroup{group(pairs), group(pairs)}, tell, 1200, true},
		"the last":        {Cursor{group: 1}, []mem.PageGroup{group(pairs), group(pairs)}, tell, 1200, true},
		"within a pair":   {Cursor{pair: 7, plane: 1, off: 3}, []mem.PageGroup{group(pairs), group(pairs)}, tell, 257, true},
		"behind the last": {Cursor{group: 2}, []mem.PageGroup{group(pairs), group(pairs)}, tell, 0, false},
		"other blocks":    {Cursor{}, []mem.PageGroup{group(pairs), group(others)}, tell, 0, false},
		"among others":    {Cursor{group: 1}, []mem.PageGroup{group(others), group(pairs), group(pairs)}, tell, 1200, true},
		"a list before":   {Cursor{}, []mem.PageGroup{group(pairs), group(pairs)}, tell, 0, false},
		"no reports":      {Cursor{}, []mem.PageGroup{group(pairs), group(pairs)}, nil, 0, false},
	} {
		b := &mem.Batch{Paged: &mem.Paged{Groups: tt.groups, Completed: tt.landed}}
		if name == "a list before" {
			b.Dst, b.Src = make([]mem.Extent, 1), make([]mem.Extent, 1)
		}
		tt.at.Batch = b
		if n, ok := tt.at.LayerLeft(); n != tt.want || ok != tt.ok {
			t.Errorf("%s: %d, %t, want %d, %t", name, n, ok, tt.want, tt.ok)
		}
	}
}
