package mem

import (
	"fmt"
	"iter"
	"math"

	"github.com/kvlane/kvlane/errdefs"
)

// Plane is one tensor of a paged KV cache: the K or the V of a layer. Page p of the plane is the
// Bytes bytes of Region at Base + p*Stride. In the slot of a block these bytes are at SlotOff.
type Plane struct {
	Region  *Region
	Base    int64 // bytes from the region's start to page 0
	Stride  int64 // bytes from one page to the next; at least Bytes
	Bytes   int64 // bytes of a page to copy
	SlotOff int64 // bytes from a slot's start to this plane's bytes
}

// Slots is an array of equal slots in host or device memory. Slot s is the Stride bytes of Region
// at Base + s*Stride.
type Slots struct {
	Region *Region
	Base   int64
	Stride int64
}

// At returns slot s. It does not check the range, unlike Paged.Validate.
func (s Slots) At(slot uint32) Extent {
	return Extent{Region: s.Region, Off: s.Base + int64(slot)*s.Stride, Len: s.Stride}
}

// PageSlot pairs a page of a paged KV cache with a slot. The device receives these 8 bytes per page
// and computes the extents.
type PageSlot struct {
	Page uint32
	Slot uint32
}

// Direction is the direction of a Paged.
type Direction uint8

// Directions of a Paged.
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

// PageGroup describes the copies of Pairs in every plane. A batch of a hybrid model has several
// groups with different planes.
type PageGroup struct {
	Planes []Plane
	Slots  Slots
	Pairs  []PageSlot
}

// Paged is the compact form of len(Planes)*len(Pairs) copies for each group.
type Paged struct {
	Dir    Direction
	Groups []PageGroup
	// Sums, unless nil, receives the checksum of every copied leaf, computed from the bytes that
	// were copied: XXH3, 64 bits, seed 0, of each LeafBytes of every plane of every page. Its
	// length is Leaves. Its order is group, pair, plane, leaf. The stream's completion reports
	// whether Sums was filled. If not, or if the batch failed, the contents are undefined. The
	// stream owns Sums until the batch has resolved.
	Sums []uint64
	// Completed, unless nil, is called during the copy when more groups have completed. groups is
	// the number of completed groups, from the first; it increases with each call. summed reports
	// whether their sums are in Sums. Calls are optional, and there are none after the batch has
	// resolved. The memory of a completed group is no longer accessed, even if the batch fails
	// later. Calls are serialized, on any goroutine. Completed must not block or call the stream.
	Completed func(groups int, summed bool)
}

// Validate returns the first error in the batch: no direction, a plane that does not fit its slot,
// or a page or slot outside its region. Call Extents only for a valid batch. Validate allocates
// only on failure. It takes less than a nanosecond per pair, because it checks only the highest
// page and slot of a group.
func (p *Paged) Validate() error {
	for g := range p.Groups {
		if err := p.Groups[g].Validate(); err != nil {
			return fmt.Errorf("page group %d: %w", g, err)
		}
	}
	return p.ValidateForm()
}

// ValidateForm is Validate without checks of the groups.
func (p *Paged) ValidateForm() error {
	if p.Dir != ToSlots && p.Dir != ToPages {
		return fmt.Errorf("paged batch has no direction: %w", errdefs.ErrInvalid)
	}
	if p.Sums != nil {
		return p.validateSums()
	}
	return nil
}

// Validate returns the first error in the group, which wraps ErrInvalid.
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

// Limits returns the highest page and slot that a pair of the group may have. It returns an error
// if the group is invalid regardless of its pairs. It validates element 0 and computes the last
// valid element, because the end of a high element could overflow to an offset inside the region.
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

// lastIndex returns the index of the last array element inside r. base, stride and bytes must not
// be negative.
func lastIndex(r *Region, base, stride, bytes int64) (int64, error) {
	if err := (Extent{Region: r, Off: base, Len: bytes}).Validate(); err != nil {
		return 0, err
	}
	if stride == 0 {
		return math.MaxUint32, nil
	}
	return (r.len - bytes - base) / stride, nil
}

// PairRuns describes the order of a group's pairs: the number of runs of consecutive slots, and of
// runs in which the pages are consecutive too.
type PairRuns struct{ Slots, Both int }

// For longer lists, Runs samples the first runStretch of each runEvery pairs.
const (
	runStretch = 64
	runEvery   = 1024
)

// Runs counts the runs of the pairs. For more than runEvery pairs it extrapolates from evenly
// spread samples of a sixteenth of the pairs.
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

// breaks counts the pairs whose slot does not follow the previous pair's slot, and the pairs whose
// slot or page does not. pairs must not be empty.
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

// Page returns the extent of a page. It does not check the range, unlike Paged.Validate.
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

// Pieces returns the number of copies in the batch.
func (p *Paged) Pieces() int {
	n := 0
	for i := range p.Groups {
		n += len(p.Groups[i].Planes) * len(p.Groups[i].Pairs)
	}
	return n
}

// Extents yields all (destination, source) pairs, page by page and plane by plane. It does not
// allocate.
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

// The sizes of a leaf, the unit of Paged.Sums.
const (
	LeafBytes = 4096 // bytes of a leaf
	LeafAlign = 16   // alignment of leaves in pages and slots, for the widest load of a GPU thread
)

// Leaves returns the number of sums for each pair of the group. ok is false if the group has no
// leaves: a plane's Bytes is not a multiple of LeafBytes, or its pages or its data in slots are not
// aligned to LeafAlign. A group without planes has 0 leaves. The group must be valid.
func (g *PageGroup) Leaves() (n int, ok bool) {
	for i := range g.Planes {
		pl := &g.Planes[i]
		if pl.Bytes%LeafBytes != 0 || !leafAligned(pl.Region, pl.Base, pl.Stride) || !leafAligned(g.Slots.Region, g.Slots.Base+pl.SlotOff, g.Slots.Stride) {
			return 0, false
		}
		n += int(pl.Bytes / LeafBytes)
	}
	return n, true
}

// leafAligned reports whether all elements of an array at offset base of r are aligned, at device
// and CPU addresses.
func leafAligned(r *Region, base, stride int64) bool {
	return r.dev%LeafAlign == 0 && r.cpu%LeafAlign == 0 && (base|stride)%LeafAlign == 0
}

// Leaves returns the length of Sums for the batch. ok is false if a group has no leaves; then Sums
// must be nil.
func (p *Paged) Leaves() (n int, ok bool) {
	for i := range p.Groups {
		g := &p.Groups[i]
		if len(g.Pairs) == 0 {
			continue
		}
		leaves, ok := g.Leaves()
		if !ok {
			return 0, false
		}
		n += leaves * len(g.Pairs)
	}
	return n, true
}

func (p *Paged) validateSums() error {
	n, ok := p.Leaves()
	switch {
	case !ok:
		return fmt.Errorf("paged batch with sums: planes must be whole leaves of %d bytes, aligned to %d: %w", LeafBytes, LeafAlign, errdefs.ErrInvalid)
	case n != len(p.Sums):
		return fmt.Errorf("paged batch has space for %d sums of %d leaves: %w", len(p.Sums), n, errdefs.ErrInvalid)
	}
	return nil
}
