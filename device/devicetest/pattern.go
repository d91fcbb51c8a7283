package devicetest

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// patternBytes returns the pattern of plane p of a page, as specified for device.KernelPatternFill.
func patternBytes(seed uint64, p int, n int64) []byte {
	b := make([]byte, 0, n+7)
	for o := int64(0); o < n; o += 8 {
		b = binary.LittleEndian.AppendUint64(b, device.Mix64(seed+uint64(p)<<40+uint64(o/8)))
	}
	return b[:n]
}

// patternRun is the input of both pattern kernels.
type patternRun struct {
	group    *mem.PageGroup // slots serve as indexes
	seeds    *mem.Region
	counters *mem.Region
	args     device.PatternArgs
}

func (h *harness) patternRun(t *testing.T, c *pagedCase) *patternRun {
	t.Helper()
	g := c.build(t, h)
	r := &patternRun{group: g, seeds: h.pinned(t, int64(c.slots)*8), counters: h.pinned(t, int64(c.slots)*8)}
	for i := range c.slots {
		binary.LittleEndian.PutUint64(r.seeds.Bytes()[8*i:], h.rng.Uint64())
	}
	planes, pairs := planesAndPairs(t, h, g)
	r.args = device.PatternArgs{
		Planes: planes.Dev(), NPlanes: uint64(len(g.Planes)), Pairs: pairs.Dev(), NPairs: uint64(len(g.Pairs)),
		Seeds: r.seeds.Dev(),
	}
	return r
}

func (r *patternRun) seed(index uint32) uint64 {
	return binary.LittleEndian.Uint64(r.seeds.Bytes()[8*index:])
}

func (r *patternRun) fill() *device.Kernel {
	k := r.args.Kernel()
	return &k
}

func (r *patternRun) check() *device.Kernel {
	a := r.args
	a.Counts = r.counters.Dev()
	k := a.Kernel()
	return &k
}

func (r *patternRun) counts() []uint64 {
	var c []uint64
	for b := r.counters.Bytes(); len(b) >= 8; b = b[8:] {
		c = append(c, binary.LittleEndian.Uint64(b))
	}
	return c
}

func testPatternFill(t *testing.T, h *harness) {
	for _, c := range pagedCases() {
		t.Run(c.name, func(t *testing.T) {
			q := h.launcher(t)
			r := h.patternRun(t, &c)
			want := make(map[*mem.Region][]byte)
			for i := range r.group.Planes {
				pl := &r.group.Planes[i]
				b := make([]byte, pl.Region.Len())
				fillBytes(b, guardByte)
				must(t, q.Fill(mem.All(pl.Region), guardByte))
				for _, ps := range r.group.Pairs {
					copy(b[pl.Page(ps.Page).Off:], patternBytes(r.seed(ps.Slot), i, pl.Bytes))
				}
				want[pl.Region] = b
			}
			must(t, q.Launch(r.fill()))
			for reg, b := range want {
				diff(t, "pattern of "+reg.String(), h.get(t, q, reg, reg.Len()), b)
			}
		})
	}
}

// testPatternCheck corrupts known numbers of bytes in some pages, in different parts of a plane,
// and compares the counters.
func testPatternCheck(t *testing.T, h *harness) {
	for _, c := range pagedCases() {
		t.Run(c.name, func(t *testing.T) {
			q := h.launcher(t)
			r := h.patternRun(t, &c)
			must(t, q.Launch(r.fill()))
			must(t, q.Launch(r.check()))
			sync(t, q)
			want := make([]uint64, c.slots)
			if got := r.counts(); !slices.Equal(got, want) {
				t.Fatalf("wrong bytes in untouched pages: %v", got)
			}
			for i, ps := range r.group.Pairs {
				if i%3 == 2 {
					continue // these pages stay intact
				}
				pi := h.rng.IntN(len(r.group.Planes))
				pl := &r.group.Planes[pi]
				good := patternBytes(r.seed(ps.Slot), pi, pl.Bytes)
				hits := map[int64]bool{0: true, pl.Bytes - 1: true, h.rng.Int64N(pl.Bytes): true, h.rng.Int64N(pl.Bytes): true}
				for off := range hits {
					must(t, q.Fill(pl.Page(ps.Page).Sub(off, 1), good[off]^byte(1<<(off%8))))
				}
				want[ps.Slot] = uint64(len(hits))
			}
			for round := range uint64(2) { // the kernel adds to counters and does not reset them
				must(t, q.Launch(r.check()))
				sync(t, q)
				expect := slices.Clone(want)
				for i := range expect {
					expect[i] *= round + 1
				}
				if got := r.counts(); !slices.Equal(got, expect) {
					t.Fatalf("check %d: wrong bytes %v, want %v", round, got, fmt.Sprint(expect))
				}
			}
		})
	}
}
