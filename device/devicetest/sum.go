package devicetest

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
)

// needKernel skips the test if the device does not support an optional kernel.
func needKernel(t *testing.T, q device.Launcher, name string) {
	t.Helper()
	if l, ok := q.(device.KernelLister); !ok || !l.HasKernel(name) {
		testkit.Skip(t, name, "this device does not have the kernel")
	}
}

// noSum fills the words that no kernel may write.
const noSum = 0x5555_aaaa_5555_aaaa

// sums returns pinned memory for n sums, and for a few more that must stay unchanged.
func (h *harness) sums(t *testing.T, n int) *mem.Region {
	t.Helper()
	r := h.pinned(t, int64(n+8)*8)
	for b := r.Bytes(); len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, noSum)
	}
	return r
}

func checkSums(t *testing.T, what string, r *mem.Region, want []uint64) {
	t.Helper()
	for i := range int(r.Len() / 8) {
		w := uint64(noSum)
		if i < len(want) {
			w = want[i]
		}
		if got := binary.LittleEndian.Uint64(r.Bytes()[8*i:]); got != w {
			t.Fatalf("%s: sum %d is %#x, want %#x", what, i, got, w)
		}
	}
}

// testCopyListSum copies leaves in every direction. Some pieces are not leaves: they have other
// lengths or are misaligned.
func testCopyListSum(t *testing.T, h *harness, name string) {
	q := h.launcher(t)
	needKernel(t, q, name)
	const cells, cell = 300, device.LeafBytes + 64
	p1, p2 := h.pinned(t, cells*cell), h.pinned(t, cells*cell)
	d1, d2 := h.device(t, cells*cell), h.device(t, cells*cell)
	h.random(p1.Bytes())
	must(t, q.Copy(mem.All(d1), mem.All(p1)))
	list := h.pinned(t, cells*device.CopyDescBytes)
	for way, ends := range map[string][2]*mem.Region{"to the device": {d2, p1}, "to the host": {p2, d1}, "inside the device": {d2, d1}} {
		for _, ctas := range []int{0, 1} {
			sums := h.sums(t, cells)
			var dst, src []mem.Extent
			want := make([]byte, cells*cell)
			fillBytes(want, guardByte)
			var wantSums []uint64
			for i, to := range h.rng.Perm(cells) {
				from, at, n := int64(i)*cell+16, int64(to)*cell+32, int64(device.LeafBytes)
				sum := true
				switch i % 8 {
				case 5:
					n, sum = n-16, false
				case 6:
					at, sum = at+8, false
				case 7:
					from, sum = from+1, false
				}
				src, dst = append(src, extent(ends[1], from, n)), append(dst, extent(ends[0], at, n))
				bytes := p1.Bytes()[from : from+n]
				copy(want[at:], bytes)
				if wantSums = append(wantSums, noSum); sum {
					wantSums[i] = xxh3.Hash(bytes)
				}
			}
			must(t, q.Fill(mem.All(ends[0]), guardByte))
			k := copyList(name, list, ctas, dst, src)
			k.NArgs, k.Args[2] = 3, uint64(sums.Dev())
			must(t, q.Launch(k))
			diff(t, way, h.get(t, q, ends[0], ends[0].Len()), want)
			checkSums(t, fmt.Sprintf("%s on %d CTAs", way, ctas), sums, wantSums)
		}
	}
}

// sumCases have planes of one leaf and of many. The length of one plane is not a multiple of a
// leaf, so that its end has no sum.
func sumCases() []pagedCase {
	const leaf = device.LeafBytes
	return []pagedCase{
		{name: "a leaf each", bytes: repeat(leaf, 12), pages: 40, slots: 33},
		{name: "leaves", bytes: []int64{leaf, 3 * leaf, 9 * leaf, 2 * leaf}, gap: 16, base: 32, pages: 9, slots: 8},
		{name: "an odd end", bytes: []int64{2*leaf + 48, leaf, 96}, gap: 992, pages: 12, slots: 9},
	}
}

// testCopyPagedSum copies pages in two launches, each with some of the planes.
func testCopyPagedSum(t *testing.T, h *harness, name string) {
	for _, c := range sumCases() {
		for _, dir := range []mem.Direction{mem.ToSlots, mem.ToPages} {
			t.Run(c.name+" "+dir.String(), func(t *testing.T) {
				q := h.launcher(t)
				needKernel(t, q, name)
				g := c.build(t, h)
				g.Slots.Base, g.Slots.Stride = 0, g.Slots.Stride-7 // leaves are aligned
				for i := range g.Planes {
					g.Planes[i].SlotOff -= 7
				}
				model := make(map[*mem.Region][]byte)
				h.randomize(t, q, model, g.Slots.Region)
				for i := range g.Planes {
					h.randomize(t, q, model, g.Planes[i].Region)
				}
				p := &mem.Paged{Dir: dir, Groups: []mem.PageGroup{*g}}
				for dst, src := range p.Extents() {
					copy(model[dst.Region][dst.Off:], model[src.Region][src.Off:src.Off+src.Len])
				}
				want, off, all := wantSums(g, model)
				sums := h.sums(t, len(want))
				for _, part := range [][2]int{{0, 1}, {1, len(g.Planes)}} {
					must(t, q.Launch(pagedSum(t, h, name, g, part, dir, sums, off, all)))
				}
				for r, b := range model {
					diff(t, "summed paged copy, "+r.String(), h.get(t, q, r, r.Len()), b)
				}
				checkSums(t, c.name, sums, want)
			})
		}
	}
}

// wantSums returns the sums of g's leaves after the copy, the number of leaves before each plane,
// and the number of all leaves.
func wantSums(g *mem.PageGroup, model map[*mem.Region][]byte) (want []uint64, off []int, all int) {
	for i := range g.Planes {
		off = append(off, all)
		all += int(g.Planes[i].Bytes / device.LeafBytes)
	}
	for _, ps := range g.Pairs {
		for i := range g.Planes {
			pl := &g.Planes[i]
			b := model[pl.Region][pl.Page(ps.Page).Off:][:pl.Bytes]
			for ; len(b) >= device.LeafBytes; b = b[device.LeafBytes:] {
				want = append(want, xxh3.Hash(b[:device.LeafBytes]))
			}
		}
	}
	return want, off, all
}

// pagedSum returns the launch of planes part[0] to part[1]-1 of g.
func pagedSum(t *testing.T, h *harness, name string, g *mem.PageGroup, part [2]int, dir mem.Direction, sums *mem.Region, off []int, all int) *device.Kernel {
	t.Helper()
	_, pairs := planesAndPairs(t, h, g)
	planes := h.pinned(t, int64(len(g.Planes))*device.PlaneSumDescBytes)
	for i, b := part[0], planes.Bytes(); i < part[1]; i, b = i+1, b[device.PlaneSumDescBytes:] {
		device.PlaneDescOf(&g.Planes[i]).Put(b)
		device.PlaneSums{Off: uint64(off[i]), Stride: uint64(all)}.Put(b)
	}
	a := pagedArgs(g, dir, planes, pairs)
	a.NPlanes, a.Sums = uint64(part[1]-part[0]), sums.Dev()
	k := a.Kernel(name, 0)
	return &k
}
