package describe

import (
	"fmt"
	"math"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// Shape describes a batch before it is issued, for the choice of a path and for movers.
type Shape struct {
	Bytes      int64
	Pieces     int
	Copies     int // pieces that are not empty
	Runs       int // approximate number of copies after merging adjacent ones
	Descs      int // descriptors of at most device.PieceBytes for the list
	PagedDescs int // descriptors if the Paged is described as a list
	// DstRuns and SrcRuns are the numbers of contiguous spans on either side. In a Paged, the side
	// of the slots is measured, and the side of the pages counts as scattered. SlotRows is the
	// number of spans of the slots if spans at equal distances, rows, count as one.
	DstRuns, SrcRuns, SlotRows int
	Ways                       Ways
}

// Ways is a set of directions in which a batch copies bytes.
type Ways uint8

// The directions.
const (
	H2D    Ways = 1 << iota // from pinned host memory to the device
	D2H                     // from the device to pinned host memory
	Within                  // within host memory or within device memory
	Peer                    // from one device to another
)

// wayOf returns the direction from one region to the other.
func wayOf(dst, src *mem.Region) Ways {
	switch to, from := dst.Kind() == mem.KindDevice, src.Kind() == mem.KindDevice; {
	case to && !from:
		return H2D
	case from && !to:
		return D2H
	case to && dst.Device() != src.Device():
		return Peer
	}
	return Within
}

// Survey validates b and returns its shape, without allocating. It reads a list once, with the
// checks of Batch.Validate inlined; if a check fails, it returns the error of Validate. reaches
// returns the reason why the device cannot access a region, or nil.
func Survey(b *mem.Batch, reaches func(*mem.Region) error) (Shape, error) {
	if b == nil {
		return Shape{}, fmt.Errorf("the batch is nil: %w", errdefs.ErrInvalid)
	}
	v, ok, err := surveyList(b, reaches)
	switch {
	case err != nil:
		return Shape{}, err
	case !ok:
		if err := b.Validate(); err != nil {
			return Shape{}, err
		}
		panic("describe: the validations of a batch disagree")
	case b.Paged == nil:
		return v, nil
	}
	if err := surveyPaged(b.Paged, &v, reaches); err != nil {
		return Shape{}, err
	}
	return v, nil
}

// side is the state of a pass over one side of a list.
type side struct {
	region *mem.Region // region of the last copy, known to be accessible
	len    int64       // of region
	end    int64       // end of the last copy, where an adjacent copy would start; negative if there is none
}

// moves makes the region of e the current one, and checks that the device can access it.
func (d *side) moves(e *mem.Extent, reaches func(*mem.Region) error) error {
	if e.Region == d.region {
		return nil
	}
	if err := reaches(e.Region); err != nil {
		return err
	}
	d.region, d.len, d.end = e.Region, e.Region.Len(), -1
	return nil
}

// holds reports whether e is inside the current region, which is its own. Negative numbers count as
// large ones.
func (d *side) holds(e *mem.Extent) bool {
	return uint64(e.Len) <= uint64(d.len) && uint64(e.Off) <= uint64(d.len-e.Len)
}

// surveyList measures the list. ok is false if Batch.Validate will return an error. Its speed
// matters for lists of small blocks, so the loop calls no functions while the regions stay the
// same.
func surveyList(b *mem.Batch, reaches func(*mem.Region) error) (v Shape, ok bool, err error) {
	dsts, srcs := b.Dst, b.Src
	if len(dsts) != len(srcs) {
		return v, false, nil
	}
	var to, from side
	var bytes int64
	copies, runs, descs, dstRuns, srcRuns := 0, 0, 0, 0, 0
	for i := range dsts {
		d, f := &dsts[i], &srcs[i]
		if d.Region != to.region || f.Region != from.region || i == 0 {
			if d.Region == nil || f.Region == nil {
				return v, false, nil
			}
			if err := to.moves(d, reaches); err != nil {
				return v, false, fmt.Errorf("destination %d: %w", i, err)
			}
			if err := from.moves(f, reaches); err != nil {
				return v, false, fmt.Errorf("source %d: %w", i, err)
			}
		}
		n := d.Len
		if n != f.Len || !to.holds(d) || !from.holds(f) {
			return v, false, nil
		}
		if n == 0 {
			continue
		}
		if to.end|from.end < 0 {
			v.Ways |= wayOf(d.Region, f.Region)
		}
		if d.Off != to.end {
			dstRuns++
			runs++
			if f.Off != from.end {
				srcRuns++
			}
		} else if f.Off != from.end {
			srcRuns++
			runs++
		}
		to.end, from.end = d.Off+n, f.Off+n
		copies++
		descs += int(uint64(n+device.PieceBytes-1) / device.PieceBytes)
		bytes += n
	}
	v.Pieces, v.Copies, v.Runs, v.Descs, v.Bytes, v.DstRuns, v.SrcRuns = len(dsts), copies, runs, descs, bytes, dstRuns, srcRuns
	return v, true, nil
}

func surveyPaged(p *mem.Paged, v *Shape, reaches func(*mem.Region) error) error {
	var order mem.PairRuns
	var set planes
	var top highest
	page, slot := int64(0), int64(0) // limits that the previous group's pairs satisfy
	for i := range p.Groups {
		g := &p.Groups[i]
		n := len(g.Pairs)
		if n == 0 {
			continue
		}
		// The layers of a load share their pairs, and parts of whole blocks share their planes.
		// Shared ones are checked once.
		last := before(p.Groups, i)
		pairs, err := samePairs(g, last), error(nil)
		known := samePlanes(g, last) && len(last.Pairs) > 0 && g.Slots == last.Slots
		if !known {
			set.page, set.slot, err = g.Limits()
		}
		ok := true
		if !pairs {
			top.known, ok = false, within(g.Pairs, set.page, set.slot)
		} else if set.page < page || set.slot < slot {
			ok = top.within(g.Pairs, set.page, set.slot)
		}
		if err == nil && !ok {
			err = g.Validate()
		}
		if err == nil && !known {
			err = set.survey(g, p.Dir, reaches)
		}
		if err != nil {
			return fmt.Errorf("page group %d: %w", i, err)
		}
		page, slot = set.page, set.slot
		if !pairs {
			order = g.Runs()
		}
		v.Bytes += set.bytes * int64(n)
		v.Copies += set.n * n
		v.Runs += (set.n-set.whole)*n + set.whole*order.Both
		v.PagedDescs += set.descs * n
		v.Ways |= set.ways
		slots := set.runs * n
		if set.full {
			slots = order.Slots // adjacent slots form one span
		}
		rows := slots
		if set.runs == 1 {
			rows = order.Slots // adjacent slots form one row
		}
		if p.Dir == mem.ToSlots {
			v.SrcRuns, v.DstRuns = v.SrcRuns+set.n*n, v.DstRuns+slots
		} else {
			v.DstRuns, v.SrcRuns = v.DstRuns+set.n*n, v.SrcRuns+slots
		}
		v.SlotRows += rows
		v.Pieces += len(g.Planes) * n
	}
	return p.ValidateForm()
}

// planes describes the planes of a page group, with the bytes and spans of one page and one slot.
type planes struct {
	page, slot int64 // highest valid indices
	bytes      int64
	n          int // number of planes with bytes
	// whole is the number of planes for which adjacent pages are adjacent in slots too.
	whole int
	descs int  // descriptors of at most device.PieceBytes
	runs  int  // contiguous spans of a slot
	full  bool // a single span covers the whole slot
	ways  Ways
}

// survey sets all fields except the limits.
func (s *planes) survey(g *mem.PageGroup, dir mem.Direction, reaches func(*mem.Region) error) error {
	*s = planes{page: s.page, slot: s.slot}
	if err := reaches(g.Slots.Region); err != nil {
		return fmt.Errorf("slots: %w", err)
	}
	var region *mem.Region
	first, end := int64(0), int64(-1)
	for j := range g.Planes {
		pl := &g.Planes[j]
		if pl.Region != region {
			if err := reaches(pl.Region); err != nil {
				return fmt.Errorf("plane %d: %w", j, err)
			}
			region = pl.Region
		}
		n := pl.Bytes
		if n == 0 {
			continue
		}
		if s.n == 0 {
			first = pl.SlotOff
		}
		if pl.SlotOff != end {
			s.runs++
		}
		end = pl.SlotOff + n
		s.bytes += n
		s.n++
		if wholeSlots(g) && n == pl.Stride {
			s.whole++
		}
		s.descs += int(CeilDiv(n, device.PieceBytes))
		if dir == mem.ToSlots {
			s.ways |= wayOf(g.Slots.Region, pl.Region)
		} else {
			s.ways |= wayOf(pl.Region, g.Slots.Region)
		}
	}
	s.full = s.runs == 1 && first == 0 && end == g.Slots.Stride
	return nil
}

// Reached reports whether all memory that b copies is accessible. Successive copies of the same
// region are checked once.
func Reached(b *mem.Batch, reaches func(*mem.Region) bool) bool {
	var dst, src *mem.Region
	for i := range b.Dst {
		if b.Dst[i].Len == 0 {
			continue
		}
		if r := b.Dst[i].Region; r != dst {
			if dst = r; !reaches(r) {
				return false
			}
		}
		if r := b.Src[i].Region; r != src {
			if src = r; !reaches(r) {
				return false
			}
		}
	}
	if b.Paged == nil {
		return true
	}
	for i := range b.Paged.Groups {
		g := &b.Paged.Groups[i]
		if len(g.Pairs) == 0 {
			continue
		}
		if !reaches(g.Slots.Region) {
			return false
		}
		var plane *mem.Region
		for j := range g.Planes {
			if r := g.Planes[j].Region; r != plane {
				if plane = r; !reaches(r) {
					return false
				}
			}
		}
	}
	return true
}

// within reports whether no pair exceeds page and slot. True is certain; false may be wrong. It
// compares both numbers of a pair at once: 32 bits each, with the page in the lower ones, as on all
// hosts of GPUs. A bit that is set above each limit is cleared by the subtraction if the number is
// larger, provided that no number has that bit itself.
func within(pairs []mem.PageSlot, page, slot int64) bool {
	const above = 1<<63 | 1<<31
	words := hostmem.Words(pairs)
	if len(words) != len(pairs) {
		return false
	}
	limits := uint64(min(slot, math.MaxInt32))<<32 | uint64(min(page, math.MaxInt32)) | above
	all, left := uint64(0), uint64(above)
	for len(words) >= 4 { // four at a time take half the time of one at a time
		w := (*[4]uint64)(words)
		all |= w[0] | w[1] | w[2] | w[3]
		left &= (limits - w[0]) & (limits - w[1]) & (limits - w[2]) & (limits - w[3])
		words = words[4:]
	}
	for _, w := range words {
		all |= w
		left &= limits - w
	}
	return all&above == 0 && left == above
}

// highest caches the highest page and slot of some pairs, for checks against several limits.
type highest struct {
	known      bool
	page, slot uint32
}

// within reports whether no pair exceeds page and slot.
func (h *highest) within(pairs []mem.PageSlot, page, slot int64) bool {
	if !h.known {
		*h = highest{known: true}
		for _, ps := range pairs {
			h.page, h.slot = max(h.page, ps.Page), max(h.slot, ps.Slot)
		}
	}
	return int64(h.page) <= page && int64(h.slot) <= slot
}

// wholeSlots reports whether a group has a single plane that fills its slots.
func wholeSlots(g *mem.PageGroup) bool {
	return len(g.Planes) == 1 && g.Planes[0].SlotOff == 0 && g.Planes[0].Bytes == g.Slots.Stride
}

// CeilDiv returns n divided by by, rounded up.
func CeilDiv(n, by int64) int64 { return (n + by - 1) / by }

// Align rounds n up to a multiple of to.
func Align(n, to uint64) uint64 { return (n + to - 1) / to * to }
