package log

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// openForMany opens a log for a million blocks of 4 KiB.
func openForMany(t *testing.T) (Config, *Tier) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes seconds; not with -short")
	}
	l, err := block.NewLayout([]int64{4096})
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Dir: t.TempDir(), Formats: block.Formats{{Layout: l, Identity: block.Digest{1}}}, Fsync: FsyncNever}
	tr, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return c, tr
}

// newHollow creates the appender's next segment as a sparse file, of which only the first page uses
// disk space.
func newHollow(t *testing.T, c Config, a *appender) {
	t.Helper()
	if err := a.newSegment(c.segmentBytes(), page); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(c.Dir, segmentName(a.head.number))
	// The first truncation frees the rest of the allocation.
	for _, bytes := range []int64{page, c.segmentBytes()} {
		if err := os.Truncate(name, bytes); err != nil {
			t.Fatal(err)
		}
	}
}

// A log of a million blocks opens quickly. The test only prints the time and the memory.
func TestOpenAMillionBlocks(t *testing.T) {
	const blocks, perSegment = 1_000_000, 20000
	c, tr := openForMany(t)
	var err error
	for n := range uint32(blocks/perSegment + 1) {
		a := tr.appenders[0]
		newHollow(t, c, a)
		g := a.head
		g.end.Store(c.segmentBytes())
		for i := range perSegment {
			if k := int(n)*perSegment + i; k < blocks {
				tr.table.put(entry{key: tiertest.Key(k), place: place{g.number, uint32(i*2 + 1), 1}}, nil)
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

// The test opens the log without a checkpoint, as after a kill. The log reads all headers, and verifies only the
// blocks of the last group, which may not be durable.
func TestOpenAMillionBlocksAfterAKill(t *testing.T) {
	const blocks, perGroup = 1_000_000, 1000
	c, tr := openForMany(t)
	var err error
	a := tr.appenders[0]
	recs := make([]*pending, perGroup)
	for k := 0; k < blocks; k += perGroup {
		for i := range recs {
			recs[i] = &pending{record: record{key: tiertest.Key(k + i), kind: compact, algo: block.SumXXH3, sums: make([]uint64, 1)}}
		}
		bytes := headerOf(c.Formats, recs)
		if a.head == nil || a.head.end.Load()+bytes+perGroup*page > c.segmentBytes() {
			newHollow(t, c, a)
		}
		// The payload of the blocks is a hole.
		off := a.head.end.Load()
		tr.setSynced(position{uint64(a.head.number), off})
		h := tr.newHeader(position{uint64(a.head.number), off}, bytes)
		h.groupBytes = bytes + perGroup*page
		for _, p := range recs {
			h.records = append(h.records, p.record)
		}
		h.encode(a.headers[:bytes], c.Formats)
		if err := a.writer.writeAt(a.head.file, [][]byte{a.headers[:bytes]}, off); err != nil {
			t.Fatal(err)
		}
		a.head.end.Add(h.groupBytes)
	}
	tr.cancel() // the process dies
	tr.background.Wait()
	if err := tr.closeFiles(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if tr, err = Open(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d blocks: opened in %v after a kill", blocks, time.Since(began))
	// The blocks of the last group are torn.
	if st := tr.Stats(); st.Blocks != blocks-perGroup || st.Errors != 0 {
		t.Errorf("%+v", st)
	}
	if err := tr.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
