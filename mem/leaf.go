package mem

import (
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
)

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
