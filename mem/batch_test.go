package mem_test

import (
	"errors"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// pagedCache returns a batch over a cache with keys and values of each layer, scattered over pages
// and slots.
func pagedCache(tb testing.TB, layers, pairs int, dir mem.Direction) *mem.Paged {
	tb.Helper()
	const page = 64
	pages := int64(4 * pairs)
	planes := make([]mem.Plane, 2*layers)
	for i := range planes {
		planes[i] = mem.Plane{
			Region: deviceRegion(tb, devBase+mem.DevAddr(i)<<32, 0, pages*page*2),
			Base:   page, Stride: page + 32, Bytes: page, SlotOff: int64(i) * page,
		}
	}
	slots := mem.Slots{Region: hostRegion(tb, cpuBase, int64(2*pairs*len(planes)*page+128)), Base: 128, Stride: int64(len(planes) * page)}
	rng := rand.New(rand.NewPCG(1, 2))
	list := make([]mem.PageSlot, pairs)
	slotOf := rng.Perm(2 * pairs)
	for i, p := range rng.Perm(4 * pairs)[:pairs] {
		list[i] = mem.PageSlot{Page: uint32(p), Slot: uint32(slotOf[i])}
	}
	return &mem.Paged{Dir: dir, Groups: []mem.PageGroup{{Planes: planes, Slots: slots, Pairs: list}}}
}

type copyPair struct{ dst, src mem.Extent }

// expand is a simple implementation of Extents.
func expand(b *mem.Batch) []copyPair {
	var out []copyPair
	for i := range b.Dst {
		out = append(out, copyPair{b.Dst[i], b.Src[i]})
	}
	if b.Paged == nil {
		return out
	}
	for _, g := range b.Paged.Groups {
		for _, ps := range g.Pairs {
			for _, pl := range g.Planes {
				page := mem.Extent{Region: pl.Region, Off: pl.Base + int64(ps.Page)*pl.Stride, Len: pl.Bytes}
				slot := mem.Extent{Region: g.Slots.Region, Off: g.Slots.Base + int64(ps.Slot)*g.Slots.Stride + pl.SlotOff, Len: pl.Bytes}
				if b.Paged.Dir == mem.ToSlots {
					out = append(out, copyPair{slot, page})
				} else {
					out = append(out, copyPair{page, slot})
				}
			}
		}
	}
	return out
}

func TestExtentsEqualNaiveExpansion(t *testing.T) {
	for _, dir := range []mem.Direction{mem.ToSlots, mem.ToPages} {
		t.Run(dir.String(), func(t *testing.T) {
			paged := pagedCache(t, 3, 40, dir)
			// A second group, as in a hybrid model, with its own planes, slots and page numbers.
			paged.Groups = append(paged.Groups, pagedCache(t, 1, 7, dir).Groups...)
			host := hostRegion(t, cpuBase, 1000)
			b := &mem.Batch{
				Dst:   []mem.Extent{{Region: host, Off: 0, Len: 10}, {Region: host, Off: 500, Len: 0}},
				Src:   []mem.Extent{{Region: host, Off: 990, Len: 10}, {Region: host, Off: 0, Len: 0}},
				Paged: paged,
			}
			if err := b.Validate(); err != nil {
				t.Fatal(err)
			}
			want := expand(b)
			var got []copyPair
			var bytes int64
			for dst, src := range b.Extents() {
				got = append(got, copyPair{dst, src})
				bytes += src.Len
				if err := errors.Join(dst.Validate(), src.Validate()); err != nil {
					t.Fatalf("a valid batch yields an invalid extent: %v", err)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("Extents yields %d pairs that differ from the %d expected", len(got), len(want))
			}
			if b.Pieces() != len(want) || b.Bytes() != bytes {
				t.Errorf("Pieces %d, Bytes %d; want %d, %d", b.Pieces(), b.Bytes(), len(want), bytes)
			}
			for stop := range want {
				n := 0
				for range b.Extents() {
					if n == stop {
						break
					}
					n++
				}
			}
		})
	}
}

func TestBatchValidate(t *testing.T) {
	r := hostRegion(t, cpuBase, 100)
	in := func(off, n int64) mem.Extent { return mem.Extent{Region: r, Off: off, Len: n} }
	tests := map[string]struct {
		batch mem.Batch
		ok    bool
	}{
		"empty":               {mem.Batch{}, true},
		"one copy":            {mem.Batch{Dst: []mem.Extent{in(0, 8)}, Src: []mem.Extent{in(50, 8)}}, true},
		"no source":           {mem.Batch{Dst: []mem.Extent{in(0, 8)}}, false},
		"lengths differ":      {mem.Batch{Dst: []mem.Extent{in(0, 8)}, Src: []mem.Extent{in(50, 9)}}, false},
		"destination outside": {mem.Batch{Dst: []mem.Extent{in(93, 8)}, Src: []mem.Extent{in(50, 8)}}, false},
		"source outside":      {mem.Batch{Dst: []mem.Extent{in(0, 8)}, Src: []mem.Extent{in(-1, 8)}}, false},
		"paged and wrong":     {mem.Batch{Paged: &mem.Paged{}}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if err := tt.batch.Validate(); (err == nil) != tt.ok || (err != nil && !errors.Is(err, errdefs.ErrInvalid)) {
				t.Errorf("Validate = %v, want ok %v", err, tt.ok)
			}
		})
	}
}

func TestPagedValidateRefuses(t *testing.T) {
	tests := map[string]func(g *mem.PageGroup){
		"page beyond the region":       func(g *mem.PageGroup) { g.Pairs[3].Page = 1 << 20 },
		"the highest page number":      func(g *mem.PageGroup) { g.Pairs[0].Page = math.MaxUint32 },
		"slot beyond the region":       func(g *mem.PageGroup) { g.Pairs[3].Slot = 1 << 20 },
		"the highest slot number":      func(g *mem.PageGroup) { g.Pairs[9].Slot = math.MaxUint32 },
		"plane beyond its slot":        func(g *mem.PageGroup) { g.Planes[1].SlotOff = g.Slots.Stride - g.Planes[1].Bytes + 1 },
		"plane before its slot":        func(g *mem.PageGroup) { g.Planes[1].SlotOff = -1 },
		"plane larger than a slot":     func(g *mem.PageGroup) { g.Planes[0].Bytes, g.Planes[0].Stride = 1<<40, 1<<40 },
		"pages overlap":                func(g *mem.PageGroup) { g.Planes[0].Stride = g.Planes[0].Bytes - 1 },
		"negative bytes":               func(g *mem.PageGroup) { g.Planes[0].Bytes = -1 },
		"negative base":                func(g *mem.PageGroup) { g.Planes[0].Base = -64 },
		"plane without region":         func(g *mem.PageGroup) { g.Planes[0].Region = nil },
		"slots without region":         func(g *mem.PageGroup) { g.Slots.Region = nil },
		"slots without stride":         func(g *mem.PageGroup) { g.Slots.Stride = 0 },
		"slots from before the region": func(g *mem.PageGroup) { g.Slots.Base = -1 },
		// page * stride is 2^64, which wraps around to page 0.
		"page offset wraps around":     func(g *mem.PageGroup) { g.Planes[0].Stride = 1 << 62; setPages(g, 4) },
		"page offset goes negative":    func(g *mem.PageGroup) { g.Planes[0].Stride = math.MaxInt64; setPages(g, 1) },
		"slot offset wraps around":     func(g *mem.PageGroup) { g.Slots.Stride = 1 << 62; setSlots(g, 4) },
		"base and offset wrap around":  func(g *mem.PageGroup) { g.Planes[0].Base = math.MaxInt64; setPages(g, 1) },
		"page offset wraps to a valid": func(g *mem.PageGroup) { g.Planes[0].Stride = 1<<62 + 16; setPages(g, 4) },
	}
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			p := pagedCache(t, 2, 16, mem.ToPages)
			if err := p.Validate(); err != nil {
				t.Fatal(err)
			}
			spoil(&p.Groups[0])
			if err := p.Validate(); !errors.Is(err, errdefs.ErrInvalid) {
				t.Errorf("Validate = %v, want ErrInvalid", err)
			}
		})
	}
	if err := (&mem.Paged{Dir: 3}).Validate(); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("a direction that does not exist: %v", err)
	}
}

func setPages(g *mem.PageGroup, page uint32) {
	for i := range g.Pairs {
		g.Pairs[i].Page = page
	}
}

func setSlots(g *mem.PageGroup, slot uint32) {
	for i := range g.Pairs {
		g.Pairs[i].Slot = slot
	}
}

// inside is Validate for one extent, computed without overflow.
func inside(base int64, index uint32, stride, bytes, regionLen int64) bool {
	off := new(big.Int).Mul(big.NewInt(int64(index)), big.NewInt(stride))
	off.Add(off, big.NewInt(base))
	end := new(big.Int).Add(off, big.NewInt(bytes))
	return off.Sign() >= 0 && bytes >= 0 && end.Cmp(big.NewInt(regionLen)) <= 0
}

func FuzzPagedValidate(f *testing.F) {
	f.Add(int64(64), int64(96), int64(64), int64(0), uint32(3), int64(128), int64(128), uint32(1), uint16(4096), uint16(4096))
	f.Add(int64(0), int64(1)<<62, int64(8), int64(0), uint32(4), int64(0), int64(8), uint32(0), uint16(64), uint16(64))
	f.Add(int64(math.MaxInt64), int64(math.MaxInt64), int64(1), int64(0), uint32(math.MaxUint32), int64(1), int64(1), uint32(0), uint16(9), uint16(9))
	f.Add(int64(0), int64(0), int64(0), int64(8), uint32(math.MaxUint32), int64(0), int64(8), uint32(1), uint16(9), uint16(16))
	f.Fuzz(func(t *testing.T, base, stride, bytes, slotOff int64, page uint32, slotBase, slotStride int64, slot uint32, devLen, hostLen uint16) {
		dev, host := int64(devLen)+1, int64(hostLen)+1
		p := mem.Paged{Dir: mem.ToSlots, Groups: []mem.PageGroup{{
			Planes: []mem.Plane{{Region: deviceRegion(t, devBase, 0, dev), Base: base, Stride: stride, Bytes: bytes, SlotOff: slotOff}},
			Slots:  mem.Slots{Region: hostRegion(t, cpuBase, host), Base: slotBase, Stride: slotStride},
			Pairs:  []mem.PageSlot{{Page: page, Slot: slot}},
		}}}
		fits := new(big.Int).Add(big.NewInt(slotOff), big.NewInt(bytes)).Cmp(big.NewInt(slotStride)) <= 0
		want := base >= 0 && bytes >= 0 && stride >= bytes && slotOff >= 0 && fits && slotBase >= 0 && slotStride > 0 &&
			inside(base, page, stride, bytes, dev) && inside(slotBase, slot, slotStride, slotStride, host)
		err := p.Validate()
		if (err == nil) != want {
			t.Fatalf("Validate = %v, the model expects valid %v", err, want)
		}
		if err != nil {
			return
		}
		for dst, src := range p.Extents() {
			if err := errors.Join(dst.Validate(), src.Validate()); err != nil {
				t.Fatalf("a valid batch yields %v", err)
			}
		}
	})
}

func TestBatchAllocatesNothing(t *testing.T) {
	b := &mem.Batch{Paged: pagedCache(t, 32, 512, mem.ToPages)}
	host := hostRegion(t, cpuBase, 4096)
	for i := range int64(64) {
		b.Dst = append(b.Dst, mem.Extent{Region: host, Off: i * 64, Len: 8})
		b.Src = append(b.Src, mem.Extent{Region: host, Off: i*64 + 32, Len: 8})
	}
	var sum int64
	for name, f := range map[string]func(){
		"Validate": func() {
			if err := b.Validate(); err != nil {
				t.Fatal(err)
			}
		},
		"Bytes":  func() { sum += b.Bytes() },
		"Pieces": func() { sum += int64(b.Pieces()) },
		"Extents": func() {
			for dst, src := range b.Extents() {
				sum += dst.Off + src.Len
			}
		},
		"Paged.Extents": func() {
			for dst, src := range b.Paged.Extents() {
				sum += dst.Off + src.Len
			}
		},
	} {
		if n := testing.AllocsPerRun(10, f); n != 0 {
			t.Errorf("%s of %d pieces allocates %v times", name, b.Pieces(), n)
		}
	}
	if sum == 0 {
		t.Error("no bytes were summed")
	}
}

func BenchmarkPagedValidate(b *testing.B) {
	p := pagedCache(b, 32, 4096, mem.ToPages)
	b.ReportAllocs()
	for b.Loop() {
		if err := p.Validate(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/4096, "ns/pair")
}

func BenchmarkPagedExtents(b *testing.B) {
	p := pagedCache(b, 32, 512, mem.ToPages)
	b.ReportAllocs()
	var sum int64
	for b.Loop() {
		for dst, src := range p.Extents() {
			sum += dst.Off + src.Len
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(p.Pieces()), "ns/piece")
	if sum == 0 {
		b.Error("no bytes were summed")
	}
}

// TestPairRuns checks the number of runs of consecutive slots, and of pairs that are consecutive on
// both sides.
func TestPairRuns(t *testing.T) {
	for name, tt := range map[string]struct {
		pairs []mem.PageSlot
		want  mem.PairRuns
	}{
		"none":               {nil, mem.PairRuns{}},
		"one":                {[]mem.PageSlot{{Page: 3, Slot: 9}}, mem.PairRuns{Slots: 1, Both: 1}},
		"the first of all":   {[]mem.PageSlot{{}, {Page: 1, Slot: 1}}, mem.PairRuns{Slots: 1, Both: 1}},
		"both in order":      {[]mem.PageSlot{{Page: 3, Slot: 9}, {Page: 4, Slot: 10}, {Page: 5, Slot: 11}}, mem.PairRuns{Slots: 1, Both: 1}},
		"slots in order":     {[]mem.PageSlot{{Page: 3, Slot: 9}, {Page: 7, Slot: 10}, {Page: 8, Slot: 11}}, mem.PairRuns{Slots: 1, Both: 2}},
		"pages in order":     {[]mem.PageSlot{{Page: 3, Slot: 9}, {Page: 4, Slot: 1}, {Page: 5, Slot: 7}}, mem.PairRuns{Slots: 3, Both: 3}},
		"backwards":          {[]mem.PageSlot{{Page: 3, Slot: 9}, {Page: 2, Slot: 8}}, mem.PairRuns{Slots: 2, Both: 2}},
		"the same once more": {[]mem.PageSlot{{Page: 3, Slot: 9}, {Page: 3, Slot: 9}}, mem.PairRuns{Slots: 2, Both: 2}},
	} {
		g := mem.PageGroup{Pairs: tt.pairs}
		if got := g.Runs(); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}

// TestPairRunsOfLongLists checks the sampled estimate. It is exact for lists that are fully sorted
// or fully unordered, and close for a mixture.
func TestPairRunsOfLongLists(t *testing.T) {
	const n = 100_000
	pairs := make([]mem.PageSlot, n)
	runs := func(slot, page func(i int) int) mem.PairRuns {
		for i := range pairs {
			pairs[i] = mem.PageSlot{Page: uint32(page(i)), Slot: uint32(slot(i))}
		}
		g := mem.PageGroup{Pairs: pairs}
		return g.Runs()
	}
	inOrder, scattered := func(i int) int { return i }, func(i int) int { return i * 7 % n }
	ofFive := func(i int) int { return i + i/5 }
	if got := runs(inOrder, inOrder); got != (mem.PairRuns{Slots: 1, Both: 1}) {
		t.Errorf("in order: %+v, want 1 and 1", got)
	}
	if got := runs(inOrder, scattered); got != (mem.PairRuns{Slots: 1, Both: n}) {
		t.Errorf("slots in order: %+v, want 1 and %d", got, n)
	}
	if got := runs(scattered, inOrder); got != (mem.PairRuns{Slots: n, Both: n}) {
		t.Errorf("pages in order: %+v, want %d and %d", got, n, n)
	}
	if got := runs(ofFive, inOrder); got.Slots < n/6 || got.Slots > n/4 || got.Both != got.Slots {
		t.Errorf("five in order and then a gap: %+v, want about %d", got, n/5)
	}
}
