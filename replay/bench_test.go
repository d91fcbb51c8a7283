package replay

import (
	"runtime"
	"testing"

	"github.com/kvlane/kvlane/block"
)

// deep is a geometry whose blocks have many small pieces, so that an allocation for each piece is
// noticeable.
var deep = block.Geometry{Model: "test", DType: "int8", Layers: 32, KVHeads: 1, HeadSize: 16, BlockTokens: 1, TPSize: 1}

// warmTrace writes a trace with requests for the same 100 blocks. The first request computes and
// dumps them, the others load them.
func warmTrace(tb testing.TB, requests int) string {
	tb.Helper()
	ids := make([]int64, 100)
	for i := range ids {
		ids[i] = int64(i)
	}
	all := make([][]int64, requests)
	for i := range all {
		all[i] = ids
	}
	return writeTrace(tb, all...)
}

// BenchmarkReplayLoad measures a request of 100 blocks of 64 pieces. All blocks are cached.
func BenchmarkReplayLoad(b *testing.B) {
	r := newRig(b, rigOptions{geometry: deep, slots: 120})
	c := r.config(deep, warmTrace(b, b.N+1))
	b.ReportAllocs()
	b.ResetTimer()
	rep, err := Run(b.Context(), c)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(rep.BytesVerified / int64(b.N))
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100, "ns/block")
}

// The number of allocations of a request does not depend on the number of extents, of which each
// request has 6,400.
func TestReplayAllocatesNothingPerExtent(t *testing.T) {
	const requests = 50
	r := newRig(t, rigOptions{geometry: deep, slots: 120})
	c := r.config(deep, warmTrace(t, requests))
	if _, err := Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	perRequest := float64(after.Mallocs-before.Mallocs) / requests
	t.Logf("%.0f allocations for a request of 100 blocks, 6400 extents", perRequest)
	if perRequest > 500 {
		t.Errorf("%.0f allocations for a request of 100 blocks", perRequest)
	}
}
