package devicetest

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// lengths are near the widths in which hardware and kernels copy.
var lengths = []int64{1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 127, 256, 511, 4095, 4096, 4097, 65537}

// testCopy copies bytes from pinned memory to the device, within the device, and back to pinned
// memory, at unaligned offsets. It checks that the surrounding bytes stay unchanged.
func testCopy(t *testing.T, h *harness) {
	const room = 96 << 10
	q := h.queue(t)
	src, dst := h.pinned(t, room), h.pinned(t, room)
	d1, d2 := h.device(t, room), h.device(t, room)
	h.random(src.Bytes())
	for _, n := range lengths {
		for _, from := range []int64{0, 1, 3, 8, 17} {
			for _, to := range []int64{0, 2, 5, 16, 17} {
				fillBytes(dst.Bytes(), guardByte)
				must(t, q.Fill(mem.All(d2), guardByte))
				must(t, q.Copy(extent(d1, to, n), extent(src, from, n)))
				must(t, q.Copy(extent(d2, from, n), extent(d1, to, n)))
				must(t, q.Copy(extent(dst, to, n), extent(d2, from, n)))
				sync(t, q)
				want := bytes.Repeat([]byte{guardByte}, room)
				copy(want[to:], src.Bytes()[from:from+n])
				diff(t, fmt.Sprintf("%d bytes from offset %d to %d", n, from, to), dst.Bytes(), want)
			}
		}
	}
	must(t, q.Copy(mem.All(dst), mem.All(d2)))
	must(t, q.Copy(extent(dst, 0, 4096), extent(src, 1, 4096)))
	sync(t, q)
	diff(t, "pinned to pinned", dst.Bytes()[:4096], src.Bytes()[1:4097])
	if bytes.Count(dst.Bytes()[room-4096:], []byte{guardByte}) != 4096 {
		t.Error("device memory beyond the copies was written")
	}
	must(t, q.Copy(extent(dst, 0, 0), extent(d1, 0, 0)))
	sync(t, q)
}

func testCopyLarge(t *testing.T, h *harness) {
	const n, off = 24<<20 + 13, 5
	q := h.queue(t)
	src, dst := h.pinned(t, n+off), h.pinned(t, n+off)
	d1, d2 := h.device(t, n+off), h.device(t, n+off)
	h.random(src.Bytes())
	must(t, q.Copy(extent(d1, off, n), extent(src, 0, n)))
	must(t, q.Copy(extent(d2, 0, n), extent(d1, off, n)))
	must(t, q.Copy(extent(dst, off, n), extent(d2, 0, n)))
	sync(t, q)
	diff(t, "large copy", dst.Bytes()[off:], src.Bytes()[:n])
}

// refused returns pairs of extents that every queue must refuse.
func refused(t *testing.T, h *harness) map[string][2]mem.Extent {
	t.Helper()
	b, err := hostmem.Alloc(4096)
	must(t, err)
	t.Cleanup(func() {
		if err := hostmem.Free(b); err != nil {
			t.Error(err)
		}
	})
	host, err := hostmem.Region(b)
	must(t, err)
	d, p := h.device(t, 4096), h.pinned(t, 4096)
	return map[string][2]mem.Extent{
		"source without a device address":      {mem.All(d), mem.All(host)},
		"destination without a device address": {mem.All(host), mem.All(d)},
		"no region":                            {mem.All(d), {Len: 4096}},
		"another length":                       {extent(d, 0, 4095), mem.All(p)},
		"destination past the end":             {extent(d, 1, 4096), mem.All(p)},
		"source past the end":                  {mem.All(d), extent(p, 1, 4096)},
		"negative offset":                      {extent(d, -1, 8), extent(p, 0, 8)},
		"negative length":                      {extent(d, 0, -8), extent(p, 0, -8)},
		"offset that overflows":                {extent(d, 1<<62, 1<<62), extent(p, 0, 1<<62)},
	}
}

func testCopyRefuses(t *testing.T, h *harness) {
	q := h.queue(t)
	for name, pair := range refused(t, h) {
		if err := q.Copy(pair[0], pair[1]); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("copy with %s: %v", name, err)
		}
		if name == "another length" || pair[0].Validate() == nil && pair[0].Region.Dev() != 0 {
			continue // a fill uses only the destination, which is valid
		}
		if err := q.Fill(pair[0], 1); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("fill with %s: %v", name, err)
		}
	}
	sync(t, q) // a refused call leaves the queue usable
}

func testFill(t *testing.T, h *harness) {
	const room = 96 << 10
	q := h.queue(t)
	for name, r := range map[string]*mem.Region{"device": h.device(t, room), "pinned": h.pinned(t, room)} {
		for i, n := range append([]int64{0}, lengths...) {
			for _, off := range []int64{0, 1, 3, 4, 17} {
				must(t, q.Fill(mem.All(r), guardByte))
				must(t, q.Fill(extent(r, off, n), byte(i)))
				want := bytes.Repeat([]byte{guardByte}, room)
				fillBytes(want[off:off+n], byte(i))
				diff(t, fmt.Sprintf("%d bytes of %s memory at %d", n, name, off), h.get(t, q, r, room), want)
			}
		}
	}
}

// testOrder overwrites the same range repeatedly and reads it in between.
func testOrder(t *testing.T, h *harness) {
	const steps, n = 500, 1 << 10
	q, d, out := h.queue(t), h.device(t, n), h.pinned(t, steps*n)
	for i := range int64(steps) {
		must(t, q.Fill(mem.All(d), byte(i%251)))
		must(t, q.Copy(extent(out, i*n, n), mem.All(d)))
	}
	sync(t, q)
	for i := range steps {
		got := out.Bytes()[i*n : (i+1)*n]
		if bytes.Count(got, []byte{byte(i % 251)}) != n {
			t.Fatalf("step %d read bytes of another step: %#x...", i, got[:8])
		}
	}
}

// testBatch copies many scattered pieces of all lengths in one call, and reuses the lists at once.
func testBatch(t *testing.T, h *harness) {
	q := h.batcher(t)
	const count, cell = 600, 70_000
	host, dev, back := h.pinned(t, count*cell), h.device(t, count*cell), h.pinned(t, count*cell)
	h.random(host.Bytes()[:cell])
	for i := 1; i < count; i++ {
		copy(host.Bytes()[i*cell:(i+1)*cell], host.Bytes()[i:cell])
	}
	fillBytes(back.Bytes(), guardByte)
	var up, down, from, to []mem.Extent
	want := bytes.Repeat([]byte{guardByte}, count*cell)
	for i, at := range h.rng.Perm(count) {
		n, off := lengths[i%len(lengths)], int64(i%19)
		src, mid, dst := extent(host, int64(i)*cell+off, n), extent(dev, int64(at)*cell, n), extent(back, int64(i)*cell, n)
		from, up = append(from, src), append(up, mid)
		down, to = append(down, mid), append(to, dst)
		copy(want[dst.Off:], src.Bytes())
	}
	must(t, q.CopyBatch(up, from))
	clear(up)
	clear(from)
	must(t, q.CopyBatch(to, down))
	clear(to)
	clear(down)
	must(t, q.CopyBatch(nil, nil))
	sync(t, q)
	diff(t, "batch there and back", back.Bytes(), want)
}

// testBatchOfRows copies rows at equal distances among other copies, to packed memory and back to
// rows at larger distances.
func testBatchOfRows(t *testing.T, h *harness) {
	q := h.batcher(t)
	const count, row, near, far, tail = 300, 1000, 4096, 5000, 3
	host, dev, back := h.pinned(t, count*near), h.device(t, count*row+tail), h.pinned(t, count*far+tail)
	h.random(host.Bytes())
	fillBytes(back.Bytes(), guardByte)
	want := bytes.Repeat([]byte{guardByte}, count*far+tail)
	var up, down, from, to []mem.Extent
	add := func(src, mid, dst, n int64) {
		from, up = append(from, extent(host, src, n)), append(up, extent(dev, mid, n))
		down, to = append(down, extent(dev, mid, n)), append(to, extent(back, dst, n))
		copy(want[dst:][:n], host.Bytes()[src:][:n])
	}
	for i := range int64(count) {
		add(i*near+7, i*row, i*far+1, row)
	}
	add(2000, count*row, count*far, tail)
	must(t, q.CopyBatch(up, from))
	must(t, q.CopyBatch(to, down))
	sync(t, q)
	diff(t, "rows there and back", back.Bytes(), want)
}

func testBatchRefuses(t *testing.T, h *harness) {
	q := h.batcher(t)
	d, p := h.device(t, 4096), h.pinned(t, 4096)
	must(t, q.Fill(mem.All(d), guardByte))
	for name, pair := range refused(t, h) {
		err := q.CopyBatch([]mem.Extent{mem.All(d), pair[0]}, []mem.Extent{mem.All(p), pair[1]})
		if !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("batch with %s: %v", name, err)
		}
	}
	if err := q.CopyBatch([]mem.Extent{mem.All(d)}, nil); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("batch with lists of two lengths: %v", err)
	}
	if got := h.get(t, q, d, 4096); bytes.Count(got, []byte{guardByte}) != 4096 {
		t.Error("a refused batch copied its good part")
	}
}

func (h *harness) batcher(t *testing.T) device.BatchCopier {
	t.Helper()
	q, ok := h.queue(t).(device.BatchCopier)
	if !ok {
		skipBatch(t)
	}
	return q
}
