package mem_test

import (
	"errors"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// leafyPaged returns a valid batch of two groups whose planes are whole leaves: 3 leaves and 1 leaf
// for each page, with 4 and 2 pairs.
func leafyPaged(tb testing.TB) *mem.Paged {
	tb.Helper()
	gpu := deviceRegion(tb, devBase, 0, 1<<20)
	host := hostRegion(tb, cpuBase, 1<<20)
	slots := mem.Slots{Region: host, Base: 4096, Stride: 32 << 10}
	pairs := []mem.PageSlot{{Page: 0, Slot: 3}, {Page: 5, Slot: 1}, {Page: 2, Slot: 0}, {Page: 7, Slot: 2}}
	return &mem.Paged{Dir: mem.ToSlots, Groups: []mem.PageGroup{
		{Slots: slots, Pairs: pairs, Planes: []mem.Plane{
			{Region: gpu, Stride: 8192 + 16, Bytes: 8192, SlotOff: 4096},
			{Region: gpu, Base: 256 << 10, Stride: 4096, Bytes: 4096, SlotOff: 12288},
		}},
		{Slots: slots, Pairs: pairs[:2], Planes: []mem.Plane{{Region: gpu, Base: 512 << 10, Stride: 4096, Bytes: 4096, SlotOff: 16384}}},
	}}
}

func TestPagedSumsAreValidated(t *testing.T) {
	p := leafyPaged(t)
	n, ok := p.Leaves()
	if n != 3*4+2 || !ok {
		t.Fatalf("%d leaves, %v", n, ok)
	}
	for _, size := range []int{n, n - 1, n + 1, 0} {
		p.Sums = make([]uint64, size)
		if err := p.Validate(); (err == nil) != (size == n) || (err != nil && !errors.Is(err, errdefs.ErrInvalid)) {
			t.Errorf("Validate with %d sums for %d leaves = %v", size, n, err)
		}
	}
	// A group without copies has no leaves.
	p.Sums = p.Sums[:0]
	for i := range p.Groups {
		p.Groups[i].Pairs = nil
		p.Groups[i].Planes[0].Bytes = 100
	}
	if n, ok := p.Leaves(); n != 0 || !ok || p.Validate() != nil {
		t.Errorf("a batch of no pairs: %d leaves, %v, %v", n, ok, p.Validate())
	}
}

func TestSumsWantWholeAlignedLeaves(t *testing.T) {
	for name, spoil := range map[string]func(g *mem.PageGroup){
		"part of a leaf":       func(g *mem.PageGroup) { g.Planes[1].Bytes = 2048 },
		"a leaf and a half":    func(g *mem.PageGroup) { g.Planes[0].Bytes = 4096 + 2048 },
		"page base":            func(g *mem.PageGroup) { g.Planes[0].Base = 8 },
		"page stride":          func(g *mem.PageGroup) { g.Planes[1].Stride += 8 },
		"slot base":            func(g *mem.PageGroup) { g.Slots.Base += 8 },
		"slot stride":          func(g *mem.PageGroup) { g.Slots.Stride += 8 },
		"place in the slot":    func(g *mem.PageGroup) { g.Planes[0].SlotOff -= 8 },
		"the region's address": func(g *mem.PageGroup) { g.Slots.Region = hostRegion(t, cpuBase+8, 1<<20) },
	} {
		p := leafyPaged(t)
		n, _ := p.Leaves()
		spoil(&p.Groups[0])
		if err := p.Validate(); err != nil {
			t.Fatalf("%s: the test's own batch is invalid: %v", name, err)
		}
		if _, ok := p.Leaves(); ok {
			t.Errorf("%s: it has leaves", name)
		}
		p.Sums = make([]uint64, n)
		if err := p.Validate(); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: Validate with sums = %v", name, err)
		}
	}
}

func TestValidatingSumsAllocatesNothing(t *testing.T) {
	p := leafyPaged(t)
	n, _ := p.Leaves()
	p.Sums = make([]uint64, n)
	if a := testing.AllocsPerRun(20, func() {
		if err := p.Validate(); err != nil {
			t.Error(err)
		}
	}); a > 0 {
		t.Errorf("%v allocations", a)
	}
}
