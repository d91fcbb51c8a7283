package devicetest

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// kernel returns a launch of name with args.
func kernel(name string, ctas int, args ...uint64) *device.Kernel {
	k := &device.Kernel{Name: name, CTAs: ctas, NArgs: len(args)}
	copy(k.Args[:], args)
	return k
}

// copyList writes descriptors of the copies into list and returns the launch.
func copyList(name string, list *mem.Region, ctas int, dst, src []mem.Extent) *device.Kernel {
	putList(list.Bytes(), dst, src)
	k := device.ListArgs{Descs: list.Dev(), Count: uint64(len(dst))}.Kernel(name, ctas)
	return &k
}

// putList writes descriptors of the copies to b.
func putList(b []byte, dst, src []mem.Extent) {
	for i := range dst {
		device.CopyDesc{Dst: dst[i].Dev(), Src: src[i].Dev(), Bytes: uint64(src[i].Len)}.Put(b[i*device.CopyDescBytes:])
	}
}

// testCopyListAlignments copies every length from every alignment to every alignment in every
// direction, and checks all bytes in between.
func testCopyListAlignments(t *testing.T, h *harness, name string) {
	const align, longest = 17, 20_000
	q := h.launcher(t)
	needKernel(t, q, name)
	const room = align * align * (longest + 64)
	list := h.pinned(t, align*align*device.CopyDescBytes)
	p1, p2 := h.pinned(t, room), h.pinned(t, room)
	d1, d2 := h.device(t, room), h.device(t, room)
	h.random(p1.Bytes()[:1<<20])
	for at := 1 << 20; at < room; at *= 2 {
		copy(p1.Bytes()[at:], p1.Bytes()[:at])
	}
	must(t, q.Copy(mem.All(d1), mem.All(p1)))
	sync(t, q)
	want := make([]byte, room)
	for i, n := range []int64{0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 23, 31, 32, 33, 47, 63, 64, 65, 127, 128, 129, 255, 511, 513, 1000, 4096, 4099, device.PieceBytes, longest} {
		cell := n + 64
		for where, way := range map[string][2]*mem.Region{"to the device": {d2, p1}, "to the host": {p2, d1}, "inside the device": {d2, d1}} {
			var dst, src []mem.Extent
			used := want[:align*align*cell]
			fillBytes(used, guardByte)
			for from := range int64(align) {
				for to := range int64(align) {
					at := (from*align + to) * cell
					src, dst = append(src, extent(way[1], at+from, n)), append(dst, extent(way[0], at+to, n))
					copy(used[at+to:], p1.Bytes()[at+from:at+from+n])
				}
			}
			out := extent(way[0], 0, int64(len(used)))
			must(t, q.Fill(out, guardByte))
			// 0 selects the device's default
			must(t, q.Launch(copyList(name, list, i%3*4, dst, src)))
			if way[0] == d2 {
				must(t, q.Copy(extent(p2, 0, out.Len), out))
			}
			sync(t, q)
			diff(t, fmt.Sprintf("%d bytes %s, all alignments", n, where), p2.Bytes()[:out.Len], used)
		}
	}
}

// testCopyListLong launches one kernel with more pieces than a grid has threads.
func testCopyListLong(t *testing.T, h *harness, name string) {
	const pieces, n = 60_000, 100
	q := h.launcher(t)
	needKernel(t, q, name)
	list, p, d := h.pinned(t, pieces*device.CopyDescBytes), h.pinned(t, pieces*n), h.device(t, pieces*n)
	h.random(p.Bytes())
	want := make([]byte, pieces*n)
	var dst, src []mem.Extent
	for i, to := range h.rng.Perm(pieces) {
		src, dst = append(src, extent(p, int64(i)*n, n)), append(dst, extent(d, int64(to)*n, n))
		copy(want[to*n:], src[i].Bytes())
	}
	for _, ctas := range []int{0, 1, 16} {
		must(t, q.Fill(mem.All(d), guardByte))
		must(t, q.Launch(copyList(name, list, ctas, dst, src)))
		diff(t, fmt.Sprintf("%d pieces on %d CTAs", pieces, ctas), h.get(t, q, d, d.Len()), want)
	}
	must(t, q.Fill(mem.All(d), guardByte))
	must(t, q.Launch(kernel(name, 0, uint64(list.Dev()), 0)))
	if got := h.get(t, q, d, d.Len()); bytes.Count(got, []byte{guardByte}) != len(got) {
		t.Error("an empty list copied something")
	}
}

// pagedCase is a paged copy and its memory.
type pagedCase struct {
	name  string
	bytes []int64 // of each plane
	gap   int64   // between pages, after their bytes
	base  int64   // of page 0
	pages int
	slots int
	inHBM bool // slots in device memory
}

// pagedCases have planes of equal and of different sizes, odd and even. Some gaps keep the pages
// aligned and others do not.
func pagedCases() []pagedCase {
	return []pagedCase{
		{name: "llama-like", bytes: []int64{4096, 4096, 4096, 4096, 4096, 4096}, pages: 40, slots: 24},
		{name: "odd", bytes: []int64{1, 3, 17, 100, 4097}, gap: 5, base: 3, pages: 33, slots: 21},
		{name: "one plane", bytes: []int64{18432}, gap: 512, base: 512, pages: 10, slots: 10},
		{name: "large pages", bytes: []int64{300_001, 262_144}, base: 64, pages: 6, slots: 5},
		{name: "inside the device", bytes: []int64{1024, 48}, gap: 16, pages: 50, slots: 30, inHBM: true},
		{name: "many planes", bytes: repeat(2048, 160), pages: 8, slots: 6},
	}
}

func repeat(v int64, n int) []int64 {
	s := make([]int64, n)
	for i := range s {
		s[i] = v
	}
	return s
}

// build allocates the case's memory on h, with one region per plane, as engines do.
func (c *pagedCase) build(t *testing.T, h *harness) *mem.PageGroup {
	t.Helper()
	g := &mem.PageGroup{}
	off := int64(7) // the first bytes of a slot are not copied
	for _, n := range c.bytes {
		r := h.device(t, c.base+int64(c.pages)*(n+c.gap))
		g.Planes = append(g.Planes, mem.Plane{Region: r, Base: c.base, Stride: n + c.gap, Bytes: n, SlotOff: off})
		off += n + c.gap
	}
	bytes := int64(c.slots) * off
	g.Slots = mem.Slots{Base: 11, Stride: off}
	if c.inHBM {
		g.Slots.Region = h.device(t, 11+bytes)
	} else {
		g.Slots.Region = h.pinned(t, 11+bytes)
	}
	pages, slots := h.rng.Perm(c.pages), h.rng.Perm(c.slots)
	for i := range min(c.pages, c.slots) - 1 { // one slot stays free
		g.Pairs = append(g.Pairs, mem.PageSlot{Page: uint32(pages[i]), Slot: uint32(slots[i])})
	}
	return g
}

// planesAndPairs writes the descriptors of g into pinned memory.
func planesAndPairs(t *testing.T, h *harness, g *mem.PageGroup) (planes, pairs *mem.Region) {
	t.Helper()
	planes = h.pinned(t, int64(len(g.Planes))*device.PlaneDescBytes)
	pairs = h.pinned(t, int64(len(g.Pairs))*device.PairBytes)
	for i := range g.Planes {
		device.PlaneDescOf(&g.Planes[i]).Put(planes.Bytes()[i*device.PlaneDescBytes:])
	}
	for i, ps := range g.Pairs {
		device.PutPair(pairs.Bytes()[i*device.PairBytes:], ps.Page, ps.Slot)
	}
	return planes, pairs
}

// copyPaged returns the launch of one group.
func copyPaged(t *testing.T, h *harness, name string, g *mem.PageGroup, dir mem.Direction) *device.Kernel {
	t.Helper()
	planes, pairs := planesAndPairs(t, h, g)
	k := pagedArgs(g, dir, planes, pairs).Kernel(name, 0)
	return &k
}

func pagedArgs(g *mem.PageGroup, dir mem.Direction, planes, pairs *mem.Region) device.PagedArgs {
	return device.PagedArgs{
		Planes: planes.Dev(), NPlanes: uint64(len(g.Planes)), Pairs: pairs.Dev(), NPairs: uint64(len(g.Pairs)),
		Slots: g.Slots.Region.Dev() + mem.DevAddr(g.Slots.Base), SlotStride: uint64(g.Slots.Stride), Direction: uint64(dir),
	}
}

// testCopyPaged copies two groups in each direction. It compares all of their memory, including
// unchanged bytes, with a copy by mem.Paged.
func testCopyPaged(t *testing.T, h *harness, name string) {
	if mem.ToSlots != 1 || mem.ToPages != 2 {
		t.Fatal("directions of the kernel and of package mem differ")
	}
	for _, c := range pagedCases() {
		for _, dir := range []mem.Direction{mem.ToSlots, mem.ToPages} {
			t.Run(c.name+" "+dir.String(), func(t *testing.T) {
				q := h.launcher(t)
				needKernel(t, q, name)
				g := c.build(t, h)
				second := pagedCases()[1]
				p := &mem.Paged{Dir: dir, Groups: []mem.PageGroup{*g, *second.build(t, h)}}
				must(t, p.Validate())
				model := make(map[*mem.Region][]byte)
				for i := range p.Groups {
					h.randomize(t, q, model, p.Groups[i].Slots.Region)
					for j := range p.Groups[i].Planes {
						h.randomize(t, q, model, p.Groups[i].Planes[j].Region)
					}
				}
				for dst, src := range p.Extents() {
					copy(model[dst.Region][dst.Off:], model[src.Region][src.Off:src.Off+src.Len])
				}
				for i := range p.Groups {
					must(t, q.Launch(copyPaged(t, h, name, &p.Groups[i], dir)))
				}
				for r, want := range model {
					diff(t, "paged copy, "+r.String(), h.get(t, q, r, r.Len()), want)
				}
			})
		}
	}
}

// randomize fills r with random bytes and stores them in model.
func (h *harness) randomize(t *testing.T, q device.Queue, model map[*mem.Region][]byte, r *mem.Region) {
	t.Helper()
	b := make([]byte, r.Len())
	h.random(b)
	model[r] = b
	h.put(t, q, r, b)
}

func testLaunchRefuses(t *testing.T, h *harness) {
	q := h.launcher(t)
	p := h.pinned(t, 4096)
	if err := q.Launch(kernel("kvlane_no_such_kernel", 0, uint64(p.Dev()))); !errors.Is(err, errdefs.ErrNotFound) && !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("launching a kernel that is not there: %v", err)
	}
	if err := q.Launch(kernel(device.KernelCopyList, 0, uint64(p.Dev()))); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("launching a kernel with too few arguments: %v", err)
	}
	if err := q.Launch(kernel(device.KernelCopyList, -1, uint64(p.Dev()), 0)); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("launching a kernel on -1 CTAs: %v", err)
	}
	sync(t, q)
}
