package mem

import (
	"fmt"
	"iter"

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

// At returns slot s.
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
}

// Validate reports every page and slot that is out of range; it allocates only on failure and costs a few ns a pair.
func (p *Paged) Validate() error {
	if p.Dir != ToSlots && p.Dir != ToPages {
		return fmt.Errorf("paged batch has no direction: %w", errdefs.ErrInvalid)
	}
	for g := range p.Groups {
		if err := p.Groups[g].validate(); err != nil {
			return fmt.Errorf("page group %d: %w", g, err)
		}
	}
	return nil
}

func (g *PageGroup) validate() error {
	var maxPage, maxSlot uint32
	for _, ps := range g.Pairs {
		maxPage, maxSlot = max(maxPage, ps.Page), max(maxSlot, ps.Slot)
	}
	if len(g.Pairs) == 0 {
		return nil
	}
	if g.Slots.Stride <= 0 || g.Slots.Base < 0 {
		return fmt.Errorf("slots have base %d and stride %d: %w", g.Slots.Base, g.Slots.Stride, errdefs.ErrInvalid)
	}
	if err := g.Slots.At(maxSlot).Validate(); err != nil {
		return fmt.Errorf("slot %d: %w", maxSlot, err)
	}
	for i := range g.Planes {
		pl := &g.Planes[i]
		if pl.Bytes < 0 || pl.Stride < pl.Bytes || pl.Base < 0 || pl.SlotOff < 0 || pl.SlotOff > g.Slots.Stride-pl.Bytes {
			return fmt.Errorf("plane %d (%d bytes, stride %d, base %d, slot offset %d) does not fit a slot of %d bytes: %w",
				i, pl.Bytes, pl.Stride, pl.Base, pl.SlotOff, g.Slots.Stride, errdefs.ErrInvalid)
		}
		if err := pl.Page(maxPage).Validate(); err != nil {
			return fmt.Errorf("plane %d page %d: %w", i, maxPage, err)
		}
	}
	return nil
}

// Page returns the extent of page p.
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
