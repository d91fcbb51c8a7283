package copy

import (
	"fmt"
	"math"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// survey is what choosing a path and encoding need to know of a batch before it is issued.
type survey struct {
	bytes  int64
	pieces int
	copies int // pieces that have bytes
	runs   int // about how many copies are left after merging neighbours
	descs  int // descriptors of device.PieceBytes at most that the list needs
	paged  int // descriptors that the Paged would need as a list
	// dstRuns and srcRuns are the unbroken spans of either side. Of a Paged, the side of its slots is looked at, the side
	// of its pages taken for scattered.
	dstRuns, srcRuns int
	ways             ways
}

// ways are the ways that bytes of a batch go, a set.
type ways uint8

const (
	wayH2D    ways = 1 << iota // from pinned host memory to the device
	wayD2H                     // from the device to pinned host memory
	wayWithin                  // within either
	wayPeer                    // from one device to another
)

// wayOf returns the way from one region to the other.
func wayOf(dst, src *mem.Region) ways {
	switch to, from := dst.Kind() == mem.KindDevice, src.Kind() == mem.KindDevice; {
	case to && !from:
		return wayH2D
	case from && !to:
		return wayD2H
	case to && dst.Device() != src.Device():
		return wayPeer
	}
	return wayWithin
}

// survey validates b and measures it, without allocating. A list is looked at once, with the checks of Batch.Validate
// written out; if one fails, Validate says what is wrong.
func (s *Stream) survey(b *mem.Batch) (survey, error) {
	if b == nil {
		return survey{}, fmt.Errorf("no batch: %w", errdefs.ErrInvalid)
	}
	v, ok, err := s.surveyList(b)
	switch {
	case err != nil:
		return survey{}, err
	case !ok:
		if err := b.Validate(); err != nil {
			return survey{}, err
		}
		panic("copy: a batch passes one validation and not the other")
	case b.Paged == nil:
		return v, nil
	}
	if err := s.surveyPaged(b.Paged, &v); err != nil {
		return survey{}, err
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
func (d *side) moves(s *Stream, e *mem.Extent) error {
	if e.Region == d.region {
		return nil
	}
	if err := s.reaches(e.Region); err != nil {
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
func (s *Stream) surveyList(b *mem.Batch) (v survey, ok bool, err error) {
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
			if err := to.moves(s, d); err != nil {
				return v, false, fmt.Errorf("destination %d: %w", i, err)
			}
			if err := from.moves(s, f); err != nil {
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
			v.ways |= wayOf(d.Region, f.Region)
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
	v.pieces, v.copies, v.runs, v.descs, v.bytes, v.dstRuns, v.srcRuns = len(dsts), copies, runs, descs, bytes, dstRuns, srcRuns
	return v, true, nil
}

func (s *Stream) surveyPaged(p *mem.Paged, v *survey) error {
	for i := range p.Groups {
		g := &p.Groups[i]
		page, slot, err := int64(0), int64(0), error(nil)
		if len(g.Pairs) > 0 {
			page, slot, err = g.Limits()
		}
		if err == nil && !within(g.Pairs, page, slot) {
			err = g.Validate()
		}
		if err != nil {
			return fmt.Errorf("page group %d: %w", i, err)
		}
		order := g.Runs()
		if len(g.Pairs) == 0 {
			continue
		}
		if err := s.reaches(g.Slots.Region); err != nil {
			return fmt.Errorf("slots of page group %d: %w", i, err)
		}
		for j := range g.Planes {
			if err := s.reaches(g.Planes[j].Region); err != nil {
				return fmt.Errorf("page group %d plane %d: %w", i, j, err)
			}
			n := g.Planes[j].Bytes
			if n == 0 {
				continue
			}
			v.bytes += n * int64(len(g.Pairs))
			if wholeSlots(g) && n == g.Planes[j].Stride {
				v.runs += order.Both
			} else {
				v.runs += len(g.Pairs)
			}
			v.copies += len(g.Pairs)
			v.paged += len(g.Pairs) * int(ceilDiv(n, device.PieceBytes))
			if p.Dir == mem.ToSlots {
				v.ways |= wayOf(g.Slots.Region, g.Planes[j].Region)
				v.srcRuns += len(g.Pairs)
			} else {
				v.ways |= wayOf(g.Planes[j].Region, g.Slots.Region)
				v.dstRuns += len(g.Pairs)
			}
		}
		if p.Dir == mem.ToSlots {
			v.dstRuns += slotRuns(g, order)
		} else {
			v.srcRuns += slotRuns(g, order)
		}
		v.pieces += len(g.Planes) * len(g.Pairs)
	}
	return p.ValidateForm()
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

// wholeSlots reports whether a group is of one plane that fills its slots.
func wholeSlots(g *mem.PageGroup) bool {
	return len(g.Planes) == 1 && g.Planes[0].SlotOff == 0 && g.Planes[0].Bytes == g.Slots.Stride
}

// slotRuns returns in how many unbroken spans of its slots a group copies, whose pairs are in that order.
func slotRuns(g *mem.PageGroup, order mem.PairRuns) int {
	runs, first, end := 0, int64(0), int64(-1)
	for i := range g.Planes {
		pl := &g.Planes[i]
		if pl.Bytes == 0 {
			continue
		}
		if runs == 0 {
			first = pl.SlotOff
		}
		if pl.SlotOff != end {
			runs++
		}
		end = pl.SlotOff + pl.Bytes
	}
	if runs != 1 || first != 0 || end != g.Slots.Stride {
		return runs * len(g.Pairs)
	}
	return order.Slots // whole slots: those that follow each other make one span
}

// reaches reports whether the stream's device can address r.
func (s *Stream) reaches(r *mem.Region) error {
	if r.Dev() == 0 {
		return fmt.Errorf("%s has no device address: %w", r, errdefs.ErrInvalid)
	}
	if r.Kind() == mem.KindDevice && r.Device() != s.index && !s.reachesPeer(r) {
		return fmt.Errorf("%s is neither of device %d nor of a peer that it reaches: %w", r, s.index, errdefs.ErrInvalid)
	}
	return nil
}

// reachesPeer reports whether r is memory of a peer to which access was enabled.
func (s *Stream) reachesPeer(r *mem.Region) bool {
	p, ok := s.dev.(device.Peerer)
	return ok && p.Reaches(r.Device())
}

func ceilDiv(n, by int64) int64 { return (n + by - 1) / by }
