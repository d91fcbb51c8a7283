package streamtest

import (
	"testing"

	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// Strided returns a batch of n copies of size bytes. No two of them are adjacent in src or dst.
func Strided(dst, src *mem.Region, n int, size int64) *mem.Batch {
	var b mem.Batch
	for i := range int64(n) {
		b.Dst = append(b.Dst, mem.Extent{Region: dst, Off: i * (size + 1), Len: size})
		b.Src = append(b.Src, mem.Extent{Region: src, Off: i * (size + 1), Len: size})
	}
	return &b
}

// Pageable returns host memory that is not registered with a device or NIC. It is freed when the
// test ends.
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
