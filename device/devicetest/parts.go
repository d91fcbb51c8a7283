package devicetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// testCopyParts copies several groups of pages in one launch. Once a part's words are 1, its bytes
// and sums must be complete.
func testCopyParts(t *testing.T, h *harness, name string) {
	for _, dir := range []mem.Direction{mem.ToSlots, mem.ToPages} {
		for _, ctas := range []int{1, 3, 16} {
			t.Run(fmt.Sprintf("%s on %d CTAs", dir, ctas), func(t *testing.T) {
				q := h.launcher(t)
				needKernel(t, q, name)
				newParts(t, h, q, name, dir).run(ctas)
			})
		}
	}
}

// parts are several groups of pages, with the descriptors and results of the kernel.
type parts struct {
	t     *testing.T
	h     *harness
	q     device.Launcher
	name  string
	dir   mem.Direction
	group []*mem.PageGroup
	sums  []*mem.Region
	want  [][]uint64 // sums
	model map[*mem.Region][]byte
	table *mem.Region
}

func newParts(t *testing.T, h *harness, q device.Launcher, name string, dir mem.Direction) *parts {
	t.Helper()
	p := &parts{t: t, h: h, q: q, name: name, dir: dir, model: make(map[*mem.Region][]byte)}
	for _, c := range append(sumCases(), sumCases()...) {
		g := c.build(t, h)
		g.Slots.Base, g.Slots.Stride = 0, g.Slots.Stride-7 // leaves are aligned
		for i := range g.Planes {
			g.Planes[i].SlotOff -= 7
		}
		h.randomize(t, q, p.model, g.Slots.Region)
		for i := range g.Planes {
			h.randomize(t, q, p.model, g.Planes[i].Region)
		}
		for dst, src := range (&mem.Paged{Dir: dir, Groups: []mem.PageGroup{*g}}).Extents() {
			copy(p.model[dst.Region][dst.Off:], p.model[src.Region][src.Off:src.Off+src.Len])
		}
		p.group = append(p.group, g)
	}
	p.table = h.pinned(t, int64(len(p.group))*device.PartDescBytes)
	for i, g := range p.group {
		p.describe(i, g)
	}
	return p
}

// describe writes the descriptor of part i.
func (p *parts) describe(i int, g *mem.PageGroup) {
	t, h := p.t, p.h
	t.Helper()
	want, off, all := wantSums(g, p.model)
	sums := h.sums(t, len(want))
	planes, pairs := planesAndPairs(t, h, g)
	d := device.PartDesc{
		Planes: planes.Dev(), NPlanes: uint64(len(g.Planes)), Pairs: pairs.Dev(), NPairs: uint64(len(g.Pairs)),
		Slots: g.Slots.Region.Dev() + mem.DevAddr(g.Slots.Base), SlotStride: uint64(g.Slots.Stride),
	}
	if p.name == device.KernelCopyPartsSum {
		planes = h.pinned(t, int64(len(g.Planes))*device.PlaneSumDescBytes)
		for j, b := 0, planes.Bytes(); j < len(g.Planes); j, b = j+1, b[device.PlaneSumDescBytes:] {
			device.PlaneDescOf(&g.Planes[j]).Put(b)
			device.PlaneSums{Off: uint64(off[j]), Stride: uint64(all)}.Put(b)
		}
		d.Planes, d.Sums = planes.Dev(), sums.Dev()
	}
	p.sums, p.want = append(p.sums, sums), append(p.want, want)
	d.Put(p.table.Bytes()[i*device.PartDescBytes:])
}

// run launches the kernel once with words and once without.
func (p *parts) run(ctas int) {
	t := p.t
	t.Helper()
	n := len(p.group)
	done := p.h.pinned(t, int64((n+1)*ctas)*device.PartDoneBytes)
	a := device.PartsArgs{Parts: p.table.Dev(), NParts: uint64(n), Direction: uint64(p.dir), Done: done.Dev()}
	k := a.Kernel(p.name, ctas)
	must(t, p.q.Launch(&k))
	e, err := p.q.Record()
	must(t, err)
	defer e.Close()
	p.watch(done.Bytes(), ctas)
	must(t, e.Wait(t.Context()))
	for i, b := n*ctas, done.Bytes(); i < (n+1)*ctas; i++ {
		if w := hostmem.LoadUint64(b[i*device.PartDoneBytes:]); w != 0 {
			t.Errorf("word %d behind those of the parts is %#x", i, w)
		}
	}
	for r, b := range p.model {
		diff(t, "parts, "+r.String(), p.h.get(t, p.q, r, r.Len()), b)
	}
	a.Done = 0
	k = a.Kernel(p.name, ctas)
	must(t, p.q.Launch(&k))
	for r, b := range p.model {
		diff(t, "parts without words, "+r.String(), p.h.get(t, p.q, r, r.Len()), b)
	}
}

// watch waits for the words of each part, and then checks the part's sums at once, and its slots if
// the host can access them.
func (p *parts) watch(done []byte, ctas int) {
	t := p.t
	t.Helper()
	for i, g := range p.group {
		for c := range ctas {
			for begun := time.Now(); hostmem.LoadUint64(done[(i*ctas+c)*device.PartDoneBytes:]) != 1; {
				if time.Since(begun) > patience {
					t.Fatalf("part %d, thread block %d of %d: its word has not come", i, c, ctas)
				}
			}
		}
		if p.name == device.KernelCopyPartsSum {
			checkSums(t, fmt.Sprintf("part %d", i), p.sums[i], p.want[i])
		}
		if r := g.Slots.Region; p.dir == mem.ToSlots && r.Bytes() != nil {
			diff(t, fmt.Sprintf("slots of part %d as it lands", i), r.Bytes(), p.model[r])
		}
	}
}
