package streamtest

import (
	"testing"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// sizes has values near the widths and limits of implementations.
var sizes = []int64{
	1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 255, 256, 257, 511, 512, 513, 1000, 2047, 4095, 4096, 4097,
	16383, 16384, 16385, 65535, 65536, 65537, 1<<18 + 1,
}

// routes calls run for every pair of memories.
func routes(t *testing.T, env Env, run func(t *testing.T, dst, src Memory)) {
	t.Helper()
	for _, src := range []Memory{env.A, env.B} {
		for _, dst := range []Memory{env.A, env.B} {
			if env.Unordered && src.Name == dst.Name {
				continue
			}
			t.Run(src.Name+" to "+dst.Name, func(t *testing.T) { run(t, dst, src) })
		}
	}
}

func testSizes(t *testing.T, env Env) {
	routes(t, env, func(t *testing.T, dst, src Memory) {
		w := newWorld(t, env, 0, 1)
		r, f := w.region(dst, 1<<18+64), w.region(src, 1<<18+64)
		for i, n := range sizes {
			// Destinations have all alignments to 16, and the offsets of sources differ.
			b := &mem.Batch{
				Dst: []mem.Extent{{Region: r, Off: int64(i % 16), Len: n}},
				Src: []mem.Extent{{Region: f, Off: int64(i * 7 / 16 % 16), Len: n}},
			}
			w.ok(w.submit(b))
		}
		w.check()
	})
}

func testScatter(t *testing.T, env Env) {
	routes(t, env, func(t *testing.T, dst, src Memory) {
		w := newWorld(t, env, 0, 2)
		for range less(3) {
			b := w.scatter(w.region(dst, 1<<18), w.region(src, 1<<18), 1000, func(i int) int64 { return sizes[i%28] })
			w.ok(w.submit(b))
		}
		w.check()
	})
}

// testNeighbours copies runs that are adjacent on both sides and may be merged, and runs that are
// adjacent on one side only.
func testNeighbours(t *testing.T, env Env) {
	w := newWorld(t, env, 0, 3)
	r, f := w.region(env.B, 1<<16), w.region(env.A, 1<<16)
	var b mem.Batch
	add := func(to, from, n int64) {
		b.Dst = append(b.Dst, mem.Extent{Region: r, Off: to, Len: n})
		b.Src = append(b.Src, mem.Extent{Region: f, Off: from, Len: n})
	}
	for i := range int64(8) {
		add(i*100, i*100, 100) // adjacent on both sides
	}
	for i := range int64(8) {
		add(1000+i*100, 2000+i*200, 100) // destinations only
	}
	for i := range int64(8) {
		add(4000+i*200, 1000+i*100, 100) // sources only
	}
	add(8000, 8000, 0) // empty, between two adjacent copies
	add(8000, 8000, 10)
	add(9000, 9000, 0)
	add(8010, 8010, 10)
	w.ok(w.submit(&b))
	w.check()
}

func testPaged(t *testing.T, env Env) {
	groups := map[string][][]int64{
		"one plane":     {{4096}},
		"many planes":   {{1024, 1024, 512, 512, 100, 1, 17, 4096}},
		"long plane":    {{70_001}},
		"three groups":  {{256, 256}, {64}, {2048, 33, 7}},
		"no planes":     {{}},
		"empty plane":   {{16, 0, 16}},
		"with no group": {},
	}
	for name, g := range groups {
		for _, dir := range []mem.Direction{mem.ToSlots, mem.ToPages} {
			t.Run(name+" "+dir.String(), func(t *testing.T) {
				w := newWorld(t, env, 0, 4)
				for _, pairs := range []int{1, 2, 33, 0} {
					w.ok(w.submit(w.paged(dir, env.A, env.B, pairs, g...)))
				}
				w.check()
			})
		}
	}
}

// testNeighbouringPages copies runs of adjacent pages and slots, which a stream may merge.
func testNeighbouringPages(t *testing.T, env Env) {
	const bytes, n = 512, 40
	for _, dir := range []mem.Direction{mem.ToSlots, mem.ToPages} {
		t.Run(dir.String(), func(t *testing.T) {
			w := newWorld(t, env, 0, 12)
			b := w.paged(dir, env.A, env.B, n, []int64{bytes})
			g := &b.Paged.Groups[0]
			for i, p := range []mem.PageSlot{ // starts of runs
				0: {Page: 3, Slot: 9}, 1: {}, 2: {}, 3: {}, 4: {Page: 20, Slot: 13}, 5: {}, 6: {Page: 30, Slot: 20},
				7: {Page: 0, Slot: 30}, 8: {}, 9: {},
			} {
				if g.Pairs[i] = p; p == (mem.PageSlot{}) {
					g.Pairs[i] = mem.PageSlot{Page: g.Pairs[i-1].Page + 1, Slot: g.Pairs[i-1].Slot + 1}
				}
			}
			g.Pairs = g.Pairs[:10]
			w.ok(w.submit(b))
			w.check()
		})
	}
}

func testMixed(t *testing.T, env Env) {
	w := newWorld(t, env, 0, 5)
	b := w.paged(mem.ToPages, env.A, env.B, 20, []int64{100, 200}, []int64{300})
	list := w.scatter(w.region(env.B, 1<<14), w.region(env.A, 1<<14), 50, func(i int) int64 { return int64(i * 3) })
	b.Dst, b.Src = list.Dst, list.Src
	w.ok(w.submit(b))
	w.check()
}

func testEmpty(t *testing.T, env Env) {
	w := newWorld(t, env, 0, 6)
	r, f := w.region(env.B, 100), w.region(env.A, 100)
	g := newGate()
	first := w.submit(whole(r, f, g))
	second := w.submit(&mem.Batch{})
	third := w.submit(&mem.Batch{
		Dst: []mem.Extent{{Region: r, Off: 100}}, Src: []mem.Extent{{Region: f}},
		Paged: &mem.Paged{Dir: mem.ToSlots},
	})
	if resolved(second) || resolved(third) {
		t.Error("an empty batch overtook the batch before it")
	}
	g.open(nil)
	w.ok(third)
	if !resolved(first) || !resolved(second) {
		t.Error("a ticket resolved before those before it")
	}
	for _, ticket := range []*stream.Ticket{second, third} {
		if c := ticket.Completion(); c.Bytes != 0 || c.Path != stream.PathNone || c.Reason == "" {
			t.Errorf("completion of an empty batch: %+v", c)
		}
	}
	w.check()
}

// less returns n, or about an eighth of n with -short, which is used with the race detector because
// that takes ten times as long.
func less(n int) int {
	if testing.Short() {
		return (n + 7) / 8
	}
	return n
}

// huge returns a number of pieces that exceeds every list or ring of a device.
func huge() int { return less(100_000) }

func testHugeList(t *testing.T, env Env) {
	w, n := newWorld(t, env, 0, 7), huge()
	b := w.scatter(w.region(env.B, int64(n)*24), w.region(env.A, int64(n)*24), n, func(int) int64 { return 16 })
	if len(b.Dst) < n {
		t.Fatalf("only %d extents fit", len(b.Dst))
	}
	ticket := w.submit(b)
	w.ok(ticket)
	if c := ticket.Completion(); c.Pieces != len(b.Dst) || c.Bytes != 16*int64(len(b.Dst)) {
		t.Errorf("completion: %+v", c)
	}
	w.check()
}

func testHugePaged(t *testing.T, env Env) {
	for _, dir := range []mem.Direction{mem.ToSlots, mem.ToPages} {
		w := newWorld(t, env, 0, 8)
		w.ok(w.submit(w.paged(dir, env.A, env.B, huge()/4, []int64{16, 24}, []int64{8, 1})))
		w.check()
	}
}

func testCompletion(t *testing.T, env Env) {
	w := newWorld(t, env, 0, 9)
	list := w.scatter(w.region(env.B, 1<<16), w.region(env.A, 1<<16), 40, func(int) int64 { return 1000 })
	for _, b := range []*mem.Batch{list, w.paged(mem.ToSlots, env.A, env.B, 9, []int64{300, 200})} {
		ticket := w.submit(b)
		if c := ticket.Completion(); !resolved(ticket) && c != (stream.Completion{}) {
			t.Errorf("completion before the end: %+v", c)
		}
		w.ok(ticket)
		c := ticket.Completion()
		if c.Bytes != b.Bytes() || c.Pieces != b.Pieces() || c.Reason == "" {
			t.Errorf("completion %+v of %d bytes in %d pieces", c, b.Bytes(), b.Pieces())
		}
		if c.Path == stream.PathNone || env.Path != stream.PathNone && c.Path != env.Path {
			t.Errorf("path %s, want %s", c.Path, env.Path)
		}
		if c.Started.IsZero() || c.Finished.Before(c.Started) {
			t.Errorf("started %v, finished %v", c.Started, c.Finished)
		}
	}
}
