package measure

import (
	"math/rand/v2"

	"github.com/kvlane/kvlane/mem"
)

// Shape describes the blocks of a repetition. Each block is copied between a row of the far side
// and the near side, which is in device memory. The blocks of a row are adjacent on the far side
// and anywhere on the near side.
type Shape struct {
	Dir       mem.Direction // ToPages: to the near side; ToSlots: to the far side
	Near, Far *mem.Region
	Size      int64 // bytes of a block
	// Row is the number of blocks in a row: 1, or those of a slot that holds a block's image. Count
	// is the number of blocks, a multiple of Row. Most is the maximum number of blocks in a batch,
	// rounded to whole rows.
	Row, Count, Most int
	// Pages selects page lists instead of extents, and Sums requests checksums. Rows are then
	// slots, with one plane on the near side for each block of a row.
	Pages, Sums bool
	// NearRows supplies positions of blocks on the near side. Nil: consecutive positions from its
	// start.
	NearRows *Pool
	// FarRows supplies rows of the far side. Nil: the first rows, in random order if Scatter is
	// set.
	FarRows *Pool
	Scatter bool
}

// Pool holds numbers in random order. Each repetition takes some of them.
type Pool struct {
	numbers []uint32
	at      int
}

// NewPool returns a pool of n distinct numbers from base to base+all-1 in random order, one from
// each n-th part of that range.
func NewPool(rng *rand.Rand, n, all, base int) *Pool {
	p := &Pool{numbers: make([]uint32, n)}
	for i := range p.numbers {
		low, high := i*all/n, (i+1)*all/n
		p.numbers[i] = uint32(base + low + rng.IntN(high-low))
	}
	rng.Shuffle(n, func(i, j int) { p.numbers[i], p.numbers[j] = p.numbers[j], p.numbers[i] })
	return p
}

// take fills to with numbers, starting at a random position. to must not be longer than the pool.
// If the pool is large enough, take skips the numbers of the previous call, whose blocks may be in
// a cache.
func (p *Pool) take(to []uint32, rng *rand.Rand) {
	if spare := len(p.numbers) - 2*len(to); spare >= 0 {
		p.at += rng.IntN(spare + 1)
	} else {
		p.at = rng.IntN(len(p.numbers))
	}
	p.at %= len(p.numbers)
	n := copy(to, p.numbers[p.at:])
	copy(to[n:], p.numbers)
	p.at = (p.at + len(to)) % len(p.numbers)
}

// Blocks holds the batches of one repetition. The next repetition reuses the memory of its lists.
// The zero value is empty.
type Blocks struct {
	Shape
	near, far []uint32 // by row
	order     *Pool    // order of far rows if there is no pool

	dst, src []mem.Extent
	pairs    []mem.PageSlot
	sums     []uint64
	batches  []mem.Batch
}

// Reset changes b to another shape. It creates as few batches as possible, of about the same
// length. All submitted batches of b must have completed.
func (b *Blocks) Reset(s Shape) {
	s.Row, s.Most = max(s.Row, 1), max(s.Most, s.Row, 1)
	b.Shape = s
	rows := s.Count / s.Row
	most := max(1, s.Most/s.Row)
	batches := (rows + most - 1) / most
	b.Most = (rows + batches - 1) / batches * s.Row
	b.near, b.far = identity(b.near, rows), identity(b.far, rows)
	b.batches = grow(b.batches, batches)
	switch {
	case !s.Pages:
		b.dst, b.src = grow(b.dst, s.Count), grow(b.src, s.Count)
	default:
		b.pairs = grow(b.pairs, rows)
		if s.Sums {
			b.sums = grow(b.sums, s.Count*s.leaves())
		}
	}
	for i := range b.batches {
		b.batches[i] = mem.Batch{}
		if s.Pages {
			b.batches[i].Paged = s.paged()
		}
	}
	b.Resize(s.Count)
}

func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

func identity(list []uint32, n int) []uint32 {
	list = grow(list, n)
	for i := range list {
		list[i] = uint32(i)
	}
	return list
}

// leaves returns the number of checksums of a block.
func (s *Shape) leaves() int { return int(s.Size / mem.LeafBytes) }

// planeRows returns the number of pages of each plane of the near side.
func (s *Shape) planeRows() int64 { return s.Near.Len() / s.Size / int64(s.Row) }

// paged returns a Paged for a batch, without pairs.
func (s *Shape) paged() *mem.Paged {
	g := mem.PageGroup{Slots: mem.Slots{Region: s.Far, Stride: int64(s.Row) * s.Size}}
	for i := range int64(s.Row) {
		g.Planes = append(g.Planes, mem.Plane{
			Region: s.Near, Base: i * s.planeRows() * s.Size, Stride: s.Size, Bytes: s.Size, SlotOff: i * s.Size,
		})
	}
	return &mem.Paged{Dir: s.Dir, Groups: []mem.PageGroup{g}}
}

// Resize limits the batches to the first n blocks in total, rounded down to whole rows, but to at
// least one row.
func (b *Blocks) Resize(n int) {
	rows := max(1, n/b.Row)
	b.Count, b.order = rows*b.Row, nil
	most := b.Most / b.Row
	b.batches = b.batches[:(rows+most-1)/most]
	for i := range b.batches {
		t, from, to := &b.batches[i], i*most, min((i+1)*most, rows)
		if t.Paged == nil {
			t.Dst, t.Src = b.dst[from*b.Row:to*b.Row], b.src[from*b.Row:to*b.Row]
			continue
		}
		t.Paged.Groups[0].Pairs = b.pairs[from:to]
		if b.Sums {
			t.Paged.Sums = b.sums[from*b.Row*b.leaves() : to*b.Row*b.leaves()]
		}
	}
}

// Draw selects other blocks, another order or other pairs. It must not be called while the blocks
// are being copied. It takes little time compared with a repetition: orders are created once, and
// only their start is random.
func (b *Blocks) Draw(rng *rand.Rand) {
	rows := b.Count / b.Row
	if b.NearRows != nil {
		b.NearRows.take(b.near[:rows], rng)
	}
	from := b.FarRows
	if from == nil && b.Scatter {
		if b.order == nil {
			b.order = NewPool(rng, rows, rows, 0)
		}
		from = b.order
	}
	if from != nil {
		from.take(b.far[:rows], rng)
	}
}

// Write fills the batches' lists, like a user with given block numbers before Submit.
func (b *Blocks) Write() {
	if b.Pages {
		for i := range b.Count / b.Row {
			b.pairs[i] = mem.PageSlot{Page: b.near[i], Slot: b.far[i]}
		}
		return
	}
	near, far := b.dst, b.src
	if b.Dir == mem.ToSlots {
		near, far = far, near
	}
	for i := range b.Count {
		near[i] = mem.Extent{Region: b.Near, Off: b.nearOff(i), Len: b.Size}
		far[i] = mem.Extent{Region: b.Far, Off: b.farOff(i), Len: b.Size}
	}
}

// Batches returns the batches that Write filled.
func (b *Blocks) Batches() []mem.Batch { return b.batches }

// Bytes returns the number of bytes of all batches.
func (b *Blocks) Bytes() int64 { return int64(b.Count) * b.Size }

func (b *Blocks) nearOff(i int) int64 {
	if b.Row == 1 {
		return int64(b.near[i]) * b.Size
	}
	return (int64(i%b.Row)*b.planeRows() + int64(b.near[i/b.Row])) * b.Size
}

func (b *Blocks) farOff(i int) int64 {
	return (int64(b.far[i/b.Row])*int64(b.Row) + int64(i%b.Row)) * b.Size
}

// Offs returns the offsets of block i at its destination and its source.
func (b *Blocks) Offs(i int) (dst, src int64) {
	if b.Dir == mem.ToPages {
		return b.nearOff(i), b.farOff(i)
	}
	return b.farOff(i), b.nearOff(i)
}
