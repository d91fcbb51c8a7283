package describe

import (
	"fmt"
	"math"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// Shape is what choosing a path and moving need to know of a batch before it is issued.
type Shape struct {
	Bytes      int64
	Pieces     int
	Copies     int // pieces that have bytes
	Runs       int // about how many copies are left after merging neighbours
	Descs      int // descriptors of device.PieceBytes at most that the list needs
	PagedDescs int // descriptors that the Paged would need as a list
	// DstRuns and SrcRuns are the unbroken spans of either side. Of a Paged, the side of its slots is looked at, the side
	// of its pages taken for scattered. Where spans at equal distances, rows, count as one, the slots have SlotRows.
	DstRuns, SrcRuns, SlotRows int
	Ways                       Ways
}

// Ways are the ways that bytes of a batch go, a set.
type Ways uint8

// The ways.
const (
	H2D    Ways = 1 << iota // from pinned host memory to the device
	D2H                     // from the device to pinned host memory
	Within                  // within either
	Peer                    // from one device to another
)

// wayOf returns the way from one region to the other.
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

// Survey validates b and returns its shape, without allocating. A list is looked at once, with the checks of Batch.Validate
// written out; if one fails, Validate says what is wrong. reaches returns why the device cannot address a region, or nil.
func Survey(b *mem.Batch, reaches func(*mem.Region) error) (Shape, error) {
	if b == nil {
		return Shape{}, fmt.Errorf("no batch: %w", errdefs.ErrInvalid)
	}
	v, ok, err := surveyList(b, reaches)
	switch {
	case err != nil:
		return Shape{}, err
	case !ok:
		if err := b.Validate(); err != nil {
			return Shape{}, err
		}
		panic("describe: a batch passes one validation and not the other")
	case b.Paged == nil:
		return v, nil
	}
	if err := surveyPaged(b.Paged, &v, reaches); err != nil {
		return Shape{}, err
	}
	return v, nil
}

// side is where a walk over one side of a list stands.
type side struct {
	region *mem.Region // of the last copy, known to be within reach
	len    int64       // of region
	end    int64       // where a neighbour of the last copy would start; negative where there is none
}

// moves makes e's region the current one, if it is not.
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

// holds reports whether e, not moved, lies within the region. Negative numbers are large ones here.
func (d *side) holds(e *mem.Extent) bool {
	return uint64(e.Len) <= uint64(d.len) && uint64(e.Off) <= uint64(d.len-e.Len)
}

// surveyList measures the list. ok is false where Batch.Validate will find something wrong. A list of small blocks is in
// the way of those that it is about to be faster than: its loop calls nothing while regions stay the same.
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
	page, slot := int64(0), int64(0) // limits that the pairs of the group before are within
	for i := range p.Groups {
		g := &p.Groups[i]
		n := len(g.Pairs)
		if n == 0 {
			continue
		}
		// The layers of a load have the same pairs, and parts of whole blocks the same planes, which are looked at once.
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
			slots = order.Slots // those that follow each other make one span
		}
		rows := slots
		if set.runs == 1 {
			rows = order.Slots // or rows
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

// planes is what is known of the planes of a page group, and of one page and one slot by them.
type planes struct {
	page, slot int64 // the highest that are in range
	bytes      int64
	n          int  // that have bytes
	whole      int  // of them, those of pages in a row that are slots in a row
	descs      int  // of device.PieceBytes
	runs       int  // unbroken spans of the slot
	full       bool // the only one is all of the slot
	ways       Ways
}

// survey sets all but the limits.
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

// Reached reports whether all memory that copies of b touch is within reach. Neighbours are mostly of the same region, so each is
// asked for once.
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

// within reports whether no pair is above page and slot; that it does not say so need not mean that one is. It looks at
// both numbers of a pair at once, 32 bits each with the page in the lower ones, as on all hosts of GPUs: a bit that is set above
// each limit is gone after the subtraction where the number was larger, if none has that bit itself.
func within(pairs []mem.PageSlot, page, slot int64) bool {
	const above = 1<<63 | 1<<31
	words := hostmem.Words(pairs)
	if len(words) != len(pairs) {
		return false
	}
	limits := uint64(min(slot, math.MaxInt32))<<32 | uint64(min(page, math.MaxInt32)) | above
	all, left := uint64(0), uint64(above)
	for len(words) >= 4 { // four at a time take half as long as one
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

// highest is the highest page and slot of pairs that are held to several limits, one after the other.
type highest struct {
	known      bool
	page, slot uint32
}

// within is within, exactly.
func (h *highest) within(pairs []mem.PageSlot, page, slot int64) bool {
	if !h.known {
		*h = highest{known: true}
		for _, ps := range pairs {
			h.page, h.slot = max(h.page, ps.Page), max(h.slot, ps.Slot)
		}
	}
	return int64(h.page) <= page && int64(h.slot) <= slot
}

// wholeSlots reports whether a group is of one plane that fills its slots.
func wholeSlots(g *mem.PageGroup) bool {
	return len(g.Planes) == 1 && g.Planes[0].SlotOff == 0 && g.Planes[0].Bytes == g.Slots.Stride
}

// CeilDiv returns n divided by by, rounded up.
func CeilDiv(n, by int64) int64 { return (n + by - 1) / by }

// Align rounds n up to a multiple of to.
func Align(n, to uint64) uint64 { return (n + to - 1) / to * to }
