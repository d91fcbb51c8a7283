package describe

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// TestWithinIsExact checks that pairs are within the limits if and only if each number is. Numbers
// of 2^31 and more are left to a separate check.
func TestWithinIsExact(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 31))
	edges := []uint32{0, 1, 2, 1 << 16, 1<<31 - 2, 1<<31 - 1, 1 << 31, 1<<31 + 1, math.MaxUint32}
	limits := []int64{0, 1, 1 << 16, 1<<31 - 2, 1<<31 - 1, 1 << 31, math.MaxUint32, math.MaxInt64}
	for range 20_000 {
		page, slot := limits[rng.IntN(len(limits))], limits[rng.IntN(len(limits))]
		pairs := make([]mem.PageSlot, 1+rng.IntN(11))
		want := true
		for i := range pairs {
			pairs[i] = mem.PageSlot{Page: uint32(min(page, int64(rng.Uint32()))), Slot: uint32(min(slot, int64(rng.Uint32())))}
			if rng.IntN(8) == 0 {
				pairs[i].Page = edges[rng.IntN(len(edges))]
			}
			if rng.IntN(8) == 0 {
				pairs[i].Slot = edges[rng.IntN(len(edges))]
			}
			want = want && int64(pairs[i].Page) <= min(page, math.MaxInt32) && int64(pairs[i].Slot) <= min(slot, math.MaxInt32)
		}
		if got := within(pairs, page, slot); got != want {
			t.Fatalf("%v within page %d and slot %d: %v", pairs, page, slot, got)
		}
	}
}

// BenchmarkWithin measures the check of page numbers before a batch starts.
func BenchmarkWithin(b *testing.B) {
	pairs := make([]mem.PageSlot, 100_000)
	for i := range pairs {
		pairs[i] = mem.PageSlot{Page: uint32(i * 7919 % 1_000_003), Slot: uint32(i)}
	}
	for b.Loop() {
		if !within(pairs, 1_000_003, 100_000) {
			b.Fatal("within returned false")
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(pairs)), "ns/pair")
}

// The pairs of groups with the same pairs are checked once, but against the memory of each group.
func TestSurveyHoldsEachGroupToItsOwnMemory(t *testing.T) {
	const page = 4096
	device := func(pages int64) *mem.Region {
		r, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Len: pages * page, Dev: mem.DevAddr(1) << 40})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	pairs := []mem.PageSlot{{Page: 1, Slot: 0}, {Page: 7, Slot: 5}}
	group := func(pages, slots int64) mem.PageGroup {
		return mem.PageGroup{
			Planes: []mem.Plane{{Region: device(pages), Stride: page, Bytes: page}},
			Slots:  mem.Slots{Region: device(slots), Stride: page}, Pairs: pairs,
		}
	}
	reaches := func(*mem.Region) error { return nil }
	survey := func(groups ...mem.PageGroup) error {
		_, err := Survey(&mem.Batch{Paged: &mem.Paged{Dir: mem.ToPages, Groups: groups}}, reaches)
		return err
	}
	if err := survey(group(8, 6), group(9, 7), group(8, 6)); err != nil {
		t.Errorf("groups that hold their pairs: %v", err)
	}
	for _, small := range []mem.PageGroup{group(7, 6), group(8, 5)} {
		if err := survey(group(8, 6), small); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("a group that does not hold the pairs of the one before: %v", err)
		}
	}
}

// benchRequest returns a load of 1,024 blocks with 64 planes, split into layers or into parts with
// some blocks each.
func benchRequest(tb testing.TB, layers bool) *mem.Batch {
	tb.Helper()
	const planes, blocks, bytes = 64, 1024, 4096
	device, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Len: planes * blocks * bytes, Dev: mem.DevAddr(1) << 40})
	if err != nil {
		tb.Fatal(err)
	}
	var all []mem.Plane
	for i := range int64(planes) {
		all = append(all, mem.Plane{Region: device, Base: i * bytes * blocks, Stride: bytes, Bytes: bytes, SlotOff: i * bytes})
	}
	pairs := make([]mem.PageSlot, blocks)
	for i := range pairs {
		pairs[i] = mem.PageSlot{Page: uint32(i * 7 % blocks), Slot: uint32(i)}
	}
	p := &mem.Paged{Dir: mem.ToPages}
	for i := range 32 {
		g := mem.PageGroup{Planes: all, Slots: mem.Slots{Region: device, Stride: planes * bytes}, Pairs: pairs}
		if layers {
			g.Planes = all[2*i:][:2]
		} else {
			g.Pairs = pairs[32*i:][:32]
		}
		p.Groups = append(p.Groups, g)
	}
	return &mem.Batch{Paged: p}
}

// BenchmarkSurvey measures the survey of a request before it starts.
func BenchmarkSurvey(b *testing.B) {
	for _, layers := range []bool{true, false} {
		b.Run(map[bool]string{true: "layers", false: "parts"}[layers], func(b *testing.B) {
			batch := benchRequest(b, layers)
			for b.Loop() {
				if _, err := Survey(batch, func(*mem.Region) error { return nil }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Groups that share planes are surveyed as if each were the only one.
func TestSurveyOfGroupsThatSharePlanes(t *testing.T) {
	for _, layers := range []bool{true, false} {
		batch := benchRequest(t, layers)
		reaches := func(*mem.Region) error { return nil }
		got, err := Survey(batch, reaches)
		if err != nil {
			t.Fatal(err)
		}
		for i := range batch.Paged.Groups {
			g := &batch.Paged.Groups[i]
			g.Planes, g.Pairs = slices.Clone(g.Planes), slices.Clone(g.Pairs)
		}
		if want, err := Survey(batch, reaches); err != nil || got != want || want.Pieces != 64*1024 {
			t.Errorf("layers %v: %+v by groups that share, %+v, %v by others", layers, got, want, err)
		}
	}
	for _, beyond := range []mem.PageSlot{{Page: 1024}, {Slot: 1024}} {
		batch := benchRequest(t, false)
		batch.Paged.Groups[31].Pairs[31] = beyond
		if _, err := Survey(batch, func(*mem.Region) error { return nil }); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("a pair %v beyond its planes: %v", beyond, err)
		}
	}
}
