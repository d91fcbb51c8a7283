package log

import (
	"runtime"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// A log of a million blocks opens quickly: the time and the memory are printed, and judged by people.
func TestOpenAMillionBlocks(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a second; not with -short")
	}
	const blocks, perSegment = 1_000_000, 16000
	l, err := block.NewLayout([]int64{4096})
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Dir: t.TempDir(), Formats: block.Formats{{Layout: l, Identity: block.Digest{1}}}, Fsync: FsyncNever}
	tr, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	// Segments that are as long as they should be, of which the disk has nothing.
	for n := range uint32(blocks/perSegment + 1) {
		a := tr.appenders[0]
		if err := a.newSegment(); err != nil {
			t.Fatal(err)
		}
		g := a.head
		g.end.Store(c.segmentBytes())
		for i := range perSegment {
			if k := int(n)*perSegment + i; k < blocks {
				tr.table.put(entry{fold: foldOf(tiertest.Key(k)), place: place{g.number, uint32(i*2 + 1), 1}}, nil)
				tr.count.blocks.Add(1)
			}
		}
	}
	began := time.Now()
	if err := tr.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	closed := time.Since(began)
	var before, after runtime.MemStats
	tr = nil
	runtime.GC()
	runtime.ReadMemStats(&before)
	began = time.Now()
	if tr, err = Open(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	opened := time.Since(began)
	runtime.GC()
	runtime.ReadMemStats(&after)
	if st := tr.Stats(); st.Blocks != blocks || st.Errors != 0 {
		t.Errorf("%+v", st)
	}
	t.Logf("%d blocks: closed in %v, opened in %v, %.1f bytes a block", blocks, closed, opened, float64(after.HeapAlloc-before.HeapAlloc)/blocks)
	if err := tr.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
