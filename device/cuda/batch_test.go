package cuda

import (
	"slices"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// Many copies of equal length at equal distances become rows of one call. The other copies form a
// batch in their order.
func TestBatchHasRows(t *testing.T) {
	f, dev, q, d, h := fakeQueue(t)
	var two [2]*mem.Region // regions of the fake overlap if they are larger than fakeGrain
	for i := range two {
		r, err := dev.Alloc(4<<20, device.AllocOptions{})
		must(t, err)
		defer func() { must(t, dev.Free(r)) }()
		two[i] = r
	}
	apart := int64(two[1].Dev() - two[0].Dev())
	at := func(r *mem.Region, first, stride int64, n int) (all []mem.Extent) {
		for i := range int64(n) {
			all = append(all, mem.Extent{Region: r, Off: first + i*stride, Len: 100})
		}
		return all
	}
	for name, c := range map[string]struct {
		dst, src      []mem.Extent
		rows, batches int
	}{
		"rows":             {at(d, 0, 100, 16), at(h, 0, 4096, 16), 1, 0},
		"few":              {at(d, 0, 100, 15), at(h, 0, 4096, 15), 0, 1},
		"among others":     {slices.Concat(at(d, 5000, 100, 3), at(d, 0, 100, 20), at(d, 9000, 100, 1)), slices.Concat(at(h, 90_000, 1, 3), at(h, 0, 4096, 20), at(h, 99_000, 1, 1)), 1, 2},
		"two of one step":  {slices.Concat(at(d, 0, 100, 16), at(d, 3200, 100, 16)), slices.Concat(at(h, 0, 4096, 16), at(h, 128, 4096, 16)), 2, 0},
		"overlapping":      {at(d, 0, 100, 32), at(h, 0, 10, 32), 0, 1},
		"in falling order": {at(d, 0, 100, 32), at(h, 32*4096, -4096, 32), 0, 1},
		"of two regions":   {slices.Concat(at(two[0], apart-500, 100, 10), at(two[1], 500, 100, 10)), at(h, 0, 4096, 20), 0, 1},
		"more than a call": {at(d, 0, 100, 600), at(h, 0, 10, 600), 0, 3},
	} {
		rows, batches := f.count("cuMemcpy2DAsync_v2"), f.count("cuMemcpyBatchAsync")
		must(t, q.CopyBatch(c.dst, c.src))
		if rows, batches = f.count("cuMemcpy2DAsync_v2")-rows, f.count("cuMemcpyBatchAsync")-batches; rows != c.rows || batches != c.batches {
			t.Errorf("%s: %d calls for rows and %d for batches, want %d and %d", name, rows, batches, c.rows, c.batches)
		}
	}
}
