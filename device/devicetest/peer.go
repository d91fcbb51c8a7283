package devicetest

import (
	"errors"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// RunPeers tests two devices of one implementation that can access each other's memory. open opens
// them, with different indexes and without access; the suite closes them.
func RunPeers(t *testing.T, open func(t *testing.T) (a, b device.Peerer)) {
	t.Helper()
	for name, test := range map[string]func(t *testing.T, a, b device.Peerer){
		"Refuses": testPeerRefuses, "Copies": testPeerCopies, "OneWay": testPeerOneWay,
	} {
		t.Run(name, func(t *testing.T) {
			a, b := open(t)
			for _, d := range []device.Peerer{a, b} {
				t.Cleanup(func() {
					if err := d.Close(); err != nil {
						t.Errorf("close device: %v", err)
					}
				})
			}
			test(t, a, b)
		})
	}
}

// stranger is a device of an unknown implementation.
type stranger struct{ device.Device }

func testPeerRefuses(t *testing.T, a, b device.Peerer) {
	for name, other := range map[string]device.Device{"itself": a, "a stranger": stranger{b}, "nothing": nil} {
		if err := a.EnablePeer(other); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("peer access to %s: %v", name, err)
		}
	}
	for index, want := range map[int]bool{a.Info().Index: true, b.Info().Index: false, 99: false, device.DeviceElsewhere: false} {
		if r := memoryOf(t, index, nil); a.Reaches(r) != want {
			t.Errorf("%s is reached: %v, and nothing was enabled", r, !want)
		}
	}
	imported := memoryOf(t, a.Info().Index, mem.NewOrigin(func() error { return nil }))
	if a.Reaches(imported) {
		t.Error("memory is reached that another device has imported")
	}
}

// memoryOf returns a region of kind device that names this device index.
func memoryOf(t *testing.T, index int, o *mem.Origin) *mem.Region {
	t.Helper()
	r, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Device: index, Len: 1, Dev: 4096, Origin: o})
	must(t, err)
	return r
}

func testPeerOneWay(t *testing.T, a, b device.Peerer) {
	ofA, ofB := memoryOf(t, a.Info().Index, nil), memoryOf(t, b.Info().Index, nil)
	must(t, a.EnablePeer(b))
	must(t, a.EnablePeer(b))
	if !a.Reaches(ofB) || !a.Reaches(ofA) {
		t.Errorf("reaches the peer's memory %v, its own %v", a.Reaches(ofB), a.Reaches(ofA))
	}
	if b.Reaches(ofA) {
		t.Error("access of one to the other made access of the other to the one")
	}
	must(t, b.EnablePeer(a))
	if !b.Reaches(ofA) {
		t.Error("not reached after it was enabled")
	}
}

// testPeerCopies copies to and from the peer in all ways that a queue supports, with plain and
// shareable memory, allocated before and after access was enabled.
func testPeerCopies(t *testing.T, a, b device.Peerer) {
	h, o := newPeerHarness(a), newPeerHarness(b)
	const n = 1 << 20
	alloc := func(h *harness, shareable bool) *mem.Region {
		t.Helper()
		r, err := h.dev.Alloc(n, device.AllocOptions{Shareable: shareable})
		return h.keep(t, r, err)
	}
	far := []*mem.Region{alloc(o, false), alloc(o, true)}
	near := []*mem.Region{alloc(h, false), alloc(h, true)}
	must(t, a.EnablePeer(b))
	far, near = append(far, alloc(o, false), alloc(o, true)), append(near, alloc(h, false), alloc(h, true))

	q, theirs := h.queue(t), o.queue(t)
	for i := range far {
		want := make([]byte, n)
		for name, move := range h.means(t, q) {
			h.random(want)
			o.put(t, theirs, far[i], want)
			must(t, move(extent(near[i], 1, n-1), extent(far[i], 1, n-1)))
			sync(t, q)
			diff(t, name+" pulls", h.get(t, q, near[i], n)[1:], want[1:])
			h.random(want)
			h.put(t, q, near[i], want)
			must(t, move(extent(far[i], 0, n-3), extent(near[i], 0, n-3)))
			sync(t, q)
			diff(t, name+" pushes", o.get(t, theirs, far[i], n)[:n-3], want[:n-3])
		}
	}
	if r := far[0]; r.Device() == near[0].Device() {
		t.Errorf("both regions claim device %d", r.Device())
	}
}

func newPeerHarness(d device.Device) *harness {
	h := newHarness(func(*testing.T) device.Device { return d })
	h.dev = d
	return h
}

// means returns the ways in which a queue copies.
func (h *harness) means(t *testing.T, q device.Queue) map[string]func(dst, src mem.Extent) error {
	t.Helper()
	all := map[string]func(dst, src mem.Extent) error{"a copy engine": q.Copy}
	if b, ok := q.(device.BatchCopier); ok {
		all["a batch"] = func(dst, src mem.Extent) error { return b.CopyBatch([]mem.Extent{dst}, []mem.Extent{src}) }
		// every second row, the other rows, and the remainder
		all["a batch of rows"] = func(dst, src mem.Extent) error {
			const row = 4097
			var d, s []mem.Extent
			whole := src.Len / (2 * row) * (2 * row)
			for _, first := range []int64{0, row} {
				for off := first; off < whole; off += 2 * row {
					d, s = append(d, dst.Sub(off, row)), append(s, src.Sub(off, row))
				}
			}
			return b.CopyBatch(append(d, dst.Sub(whole, dst.Len-whole)), append(s, src.Sub(whole, src.Len-whole)))
		}
	}
	if l, ok := q.(device.Launcher); ok {
		list := h.pinned(t, 1<<20)
		all["a kernel"] = func(dst, src mem.Extent) error {
			var d, s []mem.Extent
			for off := int64(0); off < src.Len; off += device.PieceBytes {
				m := min(device.PieceBytes, src.Len-off)
				d, s = append(d, dst.Sub(off, m)), append(s, src.Sub(off, m))
			}
			return l.Launch(copyList(device.KernelCopyList, list, 8, d, s))
		}
	}
	return all
}
