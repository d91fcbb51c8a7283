package mem

import (
	"fmt"
	"iter"
	"math"

	"github.com/kvlane/kvlane/errdefs"
)

// Plane is one tensor of a paged KV cache: a layer's K, or its V. Page p of the plane is the Bytes bytes of Region at
// Base + p*Stride; in a block's slot those bytes lie at SlotOff.
type Plane struct {
	Region  *Region
	Base    int64 // bytes from the region's start to page 0
	Stride  int64 // bytes from one page to the next; at least Bytes
	Bytes   int64 // bytes of a page that are copied
	SlotOff int64 // bytes from a slot's start to this plane's bytes
}

// Slots is an array of equal slots in host or device memory: slot s is the Stride bytes of Region at Base + s*Stride.
type Slots struct {
	Region *Region
	Base   int64
	Stride int64
}

// At returns slot s. The result means nothing where the slot is out of range; Paged.Validate finds that out.
func (s Slots) At(slot uint32) Extent {
	return Extent{Region: s.Region, Off: s.Base + int64(slot)*s.Stride, Len: s.Stride}
}

// PageSlot pairs a page of a paged KV cache with the slot that holds, or will hold, its bytes. It is the 8 bytes a page
// that cross the bus; the extents behind it are computed where the copy happens.
type PageSlot struct {
	Page uint32
	Slot uint32
}

// Direction says which way a Paged copies.
type Direction uint8

// The directions of a Paged.
const (
	ToSlots Direction = iota + 1 // pages -> slots: a dump
	ToPages                      // slots -> pages: a load
)

// String returns "to-slots" or "to-pages".
func (d Direction) String() string {
	switch d {
	case ToSlots:
		return "to-slots"
	case ToPages:
		return "to-pages"
	}
	return fmt.Sprintf("direction(%d)", uint8(d))
}

// PageGroup copies Pairs of every plane. A hybrid model has several groups in one batch, each with its own planes.
type PageGroup struct {
	Planes []Plane
	Slots  Slots
	Pairs  []PageSlot
}

// Paged is the compact form of len(Planes)*len(Pairs) copies per group.
type Paged struct {
	Dir    Direction
	Groups []PageGroup
	// Sums, where it is not nil, asks for the checksum of every leaf that is copied, taken from the bytes as the copier had
	// them in hand: XXH3, 64 bits, seed 0, of each LeafBytes of every plane of every page. Its length is Leaves, its order
	// group, pair, plane, leaf. The stream says on completion whether it filled it; if it did not, or if the batch failed,
	// the contents mean nothing. It belongs to the stream until the batch has resolved.
	Sums []uint64
	// Landed, where it is not nil, is told while the batch is being copied that its first so many groups have landed, and whether
	// their sums are there. The numbers ascend. It is a help for who has work to do with what has landed: a stream may tell of
	// several groups at once, or of none before the batch resolves, and it says no more once that has. Nothing reads or writes a
	// group's memory any more that has landed; a batch that fails afterwards does not undo it. It is called by one goroutine at a time, any, and must neither block nor call the
	// stream.
	Landed func(groups int, summed bool)
}

// Validate reports the first thing wrong with the batch: no direction, a plane that does not fit its slot, a page or a slot
// outside its region. Extents may be called only when it found nothing. It allocates only on failure and costs under a
// nanosecond a pair, since only the highest page and the highest slot of a group need to be looked at.
func (p *Paged) Validate() error {
	for g := range p.Groups {
		if err := p.Groups[g].Validate(); err != nil {
			return fmt.Errorf("page group %d: %w", g, err)
		}
	}
	return p.ValidateForm()
}

// ValidateForm is Validate without the groups.
func (p *Paged) ValidateForm() error {
	if p.Dir != ToSlots && p.Dir != ToPages {
		return fmt.Errorf("paged batch has no direction: %w", errdefs.ErrInvalid)
	}
	if p.Sums != nil {
		return p.validateSums()
	}
	return nil
}

// Validate reports the first thing wrong with the group, and ErrInvalid.
func (g *PageGroup) Validate() error {
	if len(g.Pairs) == 0 {
		return nil
	}
	page, slot, err := g.Limits()
	if err != nil {
		return err
	}
	var maxPage, maxSlot uint32
	for _, ps := range g.Pairs {
		maxPage, maxSlot = max(maxPage, ps.Page), max(maxSlot, ps.Slot)
	}
	if int64(maxSlot) > slot {
		return fmt.Errorf("slot %d is outside the %s: the last is %d: %w", maxSlot, g.Slots.Region, slot, errdefs.ErrInvalid)
	}
	if int64(maxPage) > page {
		return fmt.Errorf("page %d is outside a plane's memory: the last is %d: %w", maxPage, page, errdefs.ErrInvalid)
	}
	return nil
}

// Limits returns the highest page and the highest slot that a pair of the group may name, or what is wrong with the group
// whatever its pairs are. Looking at element 0 and counting is what it takes: the end of a high element may wrap around to an
// offset inside the region.
func (g *PageGroup) Limits() (page, slot int64, err error) {
	if g.Slots.Stride <= 0 || g.Slots.Base < 0 {
		return 0, 0, fmt.Errorf("slots have base %d and stride %d: %w", g.Slots.Base, g.Slots.Stride, errdefs.ErrInvalid)
	}
	if slot, err = lastIndex(g.Slots.Region, g.Slots.Base, g.Slots.Stride, g.Slots.Stride); err != nil {
		return 0, 0, fmt.Errorf("slot 0: %w", err)
	}
	page = math.MaxUint32
	for i := range g.Planes {
		pl := &g.Planes[i]
		if pl.Bytes < 0 || pl.Stride < pl.Bytes || pl.Base < 0 || pl.SlotOff < 0 || pl.SlotOff > g.Slots.Stride-pl.Bytes {
			return 0, 0, fmt.Errorf("plane %d (%d bytes, stride %d, base %d, slot offset %d) does not fit a slot of %d bytes: %w",
				i, pl.Bytes, pl.Stride, pl.Base, pl.SlotOff, g.Slots.Stride, errdefs.ErrInvalid)
		}
		last, err := lastIndex(pl.Region, pl.Base, pl.Stride, pl.Bytes)
		if err != nil {
			return 0, 0, fmt.Errorf("plane %d page 0: %w", i, err)
		}
		page = min(page, last)
	}
	return page, slot, nil
}

// lastIndex returns the last element that lies inside r, of an array at base. base, stride and bytes are not negative.
func lastIndex(r *Region, base, stride, bytes int64) (int64, error) {
	if err := (Extent{Region: r, Off: base, Len: bytes}).Validate(); err != nil {
		return 0, err
	}
	if stride == 0 {
		return math.MaxUint32, nil
	}
	return (r.len - bytes - base) / stride, nil
}

// PairRuns is how much of a group's pairs is in order: in how many runs each slot follows the one before, and in how many each
// page does too.
type PairRuns struct{ Slots, Both int }

// Runs are counted in stretches of longer lists: neighbours are compared within runStretch pairs of each runEvery.
const (
	runStretch = 64
	runEvery   = 1024
)

// Runs returns in how many runs the pairs are: exactly of up to 1024 pairs, and of a longer list what a sixteenth of it,
// evenly spread, says of the whole.
func (g *PageGroup) Runs() PairRuns {
	if len(g.Pairs) == 0 {
		return PairRuns{}
	}
	if len(g.Pairs) <= runEvery {
		slots, both := breaks(g.Pairs)
		return PairRuns{Slots: slots + 1, Both: both + 1}
	}
	seen, slots, both := 0, 0, 0
	for at := 0; at+runStretch <= len(g.Pairs); at += runEvery {
		s, b := breaks(g.Pairs[at : at+runStretch])
		seen, slots, both = seen+runStretch-1, slots+s, both+b
	}
	all := len(g.Pairs) - 1
	return PairRuns{Slots: 1 + slots*all/seen, Both: 1 + both*all/seen}
}

// breaks returns after how many of the pairs, which are not none, a slot does not follow, and after how many slot or page
// does not.
func breaks(pairs []PageSlot) (slots, both int) {
	last := pairs[0]
	for _, ps := range pairs[1:] {
		if ps.Slot != last.Slot+1 {
			slots++
			both++
		} else if ps.Page != last.Page+1 {
			both++
		}
		last = ps
	}
	return slots, both
}

// Page returns the extent of a page. The result means nothing where the page is out of range; Paged.Validate finds that out.
func (p *Plane) Page(page uint32) Extent {
	return Extent{Region: p.Region, Off: p.Base + int64(page)*p.Stride, Len: p.Bytes}
}

// Bytes returns the number of bytes that the batch copies.
func (p *Paged) Bytes() int64 {
	var n int64
	for i := range p.Groups {
		g := &p.Groups[i]
		var perPage int64
		for j := range g.Planes {
			perPage += g.Planes[j].Bytes
		}
		n += perPage * int64(len(g.Pairs))
	}
	return n
}

// Pieces returns the number of copies that the batch stands for.
func (p *Paged) Pieces() int {
	n := 0
	for i := range p.Groups {
		n += len(p.Groups[i].Planes) * len(p.Groups[i].Pairs)
	}
	return n
}

// Extents yields every (destination, source) pair, page by page and plane by plane, without allocating.
func (p *Paged) Extents() iter.Seq2[Extent, Extent] {
	return func(yield func(dst, src Extent) bool) {
		for i := range p.Groups {
			g := &p.Groups[i]
			for _, ps := range g.Pairs {
				slot := g.Slots.At(ps.Slot)
				for j := range g.Planes {
					pl := &g.Planes[j]
					page, part := pl.Page(ps.Page), slot.Sub(pl.SlotOff, pl.Bytes)
					if p.Dir == ToPages {
						page, part = part, page
					}
					if !yield(part, page) {
						return
					}
				}
			}
		}
	}
}
