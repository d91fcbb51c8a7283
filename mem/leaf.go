package mem

import (
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
)

// A leaf is what one of Paged.Sums covers.
const (
	LeafBytes = 4096 // bytes of a leaf
	LeafAlign = 16   // what a leaf's place is a multiple of, in pages and in slots: the widest load of a GPU thread
)

// Leaves returns how many sums Paged.Sums has for the group and each pair. ok is false where the group's geometry has no
// leaves: a plane whose Bytes are not a multiple of LeafBytes, or whose pages or places in slots do not start at multiples
// of LeafAlign. A group without planes has none to sum. The group must be valid.
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

// leafAligned reports whether every element of an array at base of r is aligned, to the device and to the CPU where they
// reach it.
func leafAligned(r *Region, base, stride int64) bool {
	return r.dev%LeafAlign == 0 && r.cpu%LeafAlign == 0 && (base|stride)%LeafAlign == 0
}

// Leaves returns the length of Sums that the batch may ask for; ok is false where one of its groups has no leaves, and Sums
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
		return fmt.Errorf("paged batch asks for sums, and its planes are not whole leaves of %d bytes, aligned to %d: %w", LeafBytes, LeafAlign, errdefs.ErrInvalid)
	case n != len(p.Sums):
		return fmt.Errorf("paged batch has room for %d sums and %d leaves: %w", len(p.Sums), n, errdefs.ErrInvalid)
	}
	return nil
}
