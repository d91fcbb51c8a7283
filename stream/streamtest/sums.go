package streamtest

import (
	"slices"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/mem"
)

// testSums requests checksums of the copied bytes. If the stream reports that it has filled them,
// they must be correct.
func testSums(t *testing.T, env Env) {
	geometries := map[string][][]int64{
		"one plane":    {{mem.LeafBytes}},
		"many planes":  {slices.Repeat([]int64{mem.LeafBytes, 3 * mem.LeafBytes}, 6)},
		"long plane":   {{20 * mem.LeafBytes}},
		"three groups": {{mem.LeafBytes, mem.LeafBytes}, {2 * mem.LeafBytes}, {5 * mem.LeafBytes, mem.LeafBytes, 2 * mem.LeafBytes}},
		"empty plane":  {{mem.LeafBytes, 0, mem.LeafBytes}},
		"no planes":    {{}},
	}
	for name, groups := range geometries {
		for _, dir := range []mem.Direction{mem.ToSlots, mem.ToPages} {
			t.Run(name+" "+dir.String(), func(t *testing.T) {
				w := newWorld(t, env, 0, 90)
				for _, pairs := range []int{1, less(19), 0} {
					w.summed(w.leafPaged(dir, pairs, groups...))
				}
				// A list in the same batch, in either direction, has no sums and must not change
				// those of the pages.
				for range 2 {
					b := w.leafPaged(dir, 3, groups...)
					list := w.scatter(w.region(env.B, 1<<14), w.region(env.A, 1<<14), 50, func(i int) int64 { return int64(i * 3) })
					b.Dst, b.Src = list.Dst, list.Src
					w.summed(b)
					env.A, env.B = env.B, env.A
				}
				w.check()
			})
		}
	}
}

// summed submits b and compares its checksums with those of its bytes.
func (w *world) summed(b *mem.Batch) {
	w.Helper()
	for i := range b.Paged.Sums {
		b.Paged.Sums[i] = 0xdead
	}
	ticket := w.submit(b)
	w.ok(ticket)
	c := ticket.Completion()
	if !c.Summed {
		if w.env.Sums[c.Path] && len(b.Paged.Sums) > 0 {
			w.Errorf("no sums by path %s (%s)", c.Path, c.Reason)
		}
		return
	}
	got := b.Paged.Sums
	for _, src := range (&mem.Batch{Paged: b.Paged}).Extents() {
		bytes := w.want[src.Region][src.Off : src.Off+src.Len]
		for leaf := range slices.Chunk(bytes, mem.LeafBytes) {
			if want := xxh3.Hash(leaf); got[0] != want {
				w.Fatalf("sum %d of %d is %#x, want %#x", len(b.Paged.Sums)-len(got), len(b.Paged.Sums), got[0], want)
			}
			got = got[1:]
		}
	}
	if len(got) != 0 {
		w.Fatalf("%d sums are left over", len(got))
	}
}

// leafPaged returns a batch of whole leaves that requests checksums, with slots in A and pages in
// B.
func (w *world) leafPaged(dir mem.Direction, pairs int, groups ...[]int64) *mem.Batch {
	w.Helper()
	p := &mem.Paged{Dir: dir}
	for _, sizes := range groups {
		p.Groups = append(p.Groups, w.leafGroup(pairs, sizes))
	}
	n, ok := p.Leaves()
	if !ok {
		w.Fatal("the planes are not whole leaves")
	}
	p.Sums = make([]uint64, n)
	return &mem.Batch{Paged: p}
}

func (w *world) leafGroup(pairs int, planeBytes []int64) mem.PageGroup {
	w.Helper()
	var g mem.PageGroup
	total := int64(pairs + 3) // some pages and slots stay unused
	at := mem.LeafAlign * w.rng.Int64N(5)
	for _, n := range planeBytes {
		stride, base := n+mem.LeafAlign*w.rng.Int64N(7), mem.LeafAlign*w.rng.Int64N(33)
		g.Planes = append(g.Planes, mem.Plane{
			Region: w.region(w.env.B, base+max(stride, 1)*total), Base: base, Stride: stride, Bytes: n, SlotOff: at,
		})
		at += n + mem.LeafAlign*w.rng.Int64N(3)
	}
	g.Slots = mem.Slots{Base: mem.LeafAlign * w.rng.Int64N(65), Stride: max(at, mem.LeafAlign)}
	g.Slots.Region = w.region(w.env.A, g.Slots.Base+g.Slots.Stride*total)
	page, slot := w.rng.Perm(int(total)), w.rng.Perm(int(total))
	for i := range pairs {
		g.Pairs = append(g.Pairs, mem.PageSlot{Page: uint32(page[i]), Slot: uint32(slot[i])})
	}
	return g
}
