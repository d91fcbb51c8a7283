package streamtest

import (
	"testing"

	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// Strided returns n copies of size bytes, of which no two are neighbours on either side.
func Strided(dst, src *mem.Region, n int, size int64) *mem.Batch {
	var b mem.Batch
	for i := range int64(n) {
		b.Dst = append(b.Dst, mem.Extent{Region: dst, Off: i * (size + 1), Len: size})
		b.Src = append(b.Src, mem.Extent{Region: src, Off: i * (size + 1), Len: size})
	}
	return &b
}

// Pageable returns host memory that no device and no NIC knows of. It is freed when the test ends.
func Pageable(tb testing.TB, bytes int64) *mem.Region {
	tb.Helper()
	b, err := hostmem.Alloc(bytes)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := hostmem.Free(b); err != nil {
			tb.Error(err)
		}
	})
	r, err := hostmem.Region(b)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}
