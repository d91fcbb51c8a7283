package copy

import (
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// survey is what choosing a path and encoding need to know of a batch before it is issued.
type survey struct {
	bytes  int64
	pieces int
	runs   int // copies left after merging neighbours of the list, without empty ones; a Paged is not looked into
	descs  int // descriptors of device.PieceBytes at most that the list needs
}

// survey validates b and measures it, without allocating. A list is looked at once, with the checks of Batch.Validate
// written out; if one fails, Validate says what is wrong.
func (s *Stream) survey(b *mem.Batch) (survey, error) {
	if b == nil {
		return survey{}, fmt.Errorf("no batch: %w", errdefs.ErrInvalid)
	}
	for i, d := range b.After {
		if d == nil {
			return survey{}, fmt.Errorf("dependency %d is nil: %w", i, errdefs.ErrInvalid)
		}
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
	if err := b.Paged.Validate(); err != nil {
		return survey{}, err
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
	end    int64       // where a neighbour of the last copy would start
}

// moves makes e's region the current one, if it is not.
func (d *side) moves(s *Stream, e *mem.Extent) (bool, error) {
	if e.Region == d.region {
		return false, nil
	}
	if err := s.reaches(e.Region); err != nil {
		return false, err
	}
	d.region, d.len = e.Region, e.Region.Len()
	return true, nil
}

// holds reports whether e, not moved, lies within the region.
func (d *side) holds(e *mem.Extent) bool {
	return e.Off >= 0 && e.Len >= 0 && e.Len <= d.len && e.Off <= d.len-e.Len
}

// surveyList measures the list. ok is false where Batch.Validate will find something wrong.
func (s *Stream) surveyList(b *mem.Batch) (v survey, ok bool, err error) {
	if len(b.Dst) != len(b.Src) {
		return v, false, nil
	}
	v.pieces = len(b.Dst)
	var to, from side
	for i := range b.Dst {
		d, f := &b.Dst[i], &b.Src[i]
		if d.Region == nil || f.Region == nil || d.Len != f.Len {
			return v, false, nil
		}
		newDst, err := to.moves(s, d)
		if err != nil {
			return v, false, fmt.Errorf("destination %d: %w", i, err)
		}
		newSrc, err := from.moves(s, f)
		if err != nil {
			return v, false, fmt.Errorf("source %d: %w", i, err)
		}
		if !to.holds(d) || !from.holds(f) {
			return v, false, nil
		}
		if d.Len == 0 {
			continue
		}
		if newDst || newSrc || d.Off != to.end || f.Off != from.end || v.runs == 0 {
			v.runs++
		}
		to.end, from.end = d.Off+d.Len, f.Off+f.Len
		v.descs += int(ceilDiv(d.Len, device.PieceBytes))
		v.bytes += d.Len
	}
	return v, true, nil
}

func (s *Stream) surveyPaged(p *mem.Paged, v *survey) error {
	for i := range p.Groups {
		g := &p.Groups[i]
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
			if n := g.Planes[j].Bytes; n > 0 {
				v.bytes += n * int64(len(g.Pairs))
				v.runs += len(g.Pairs)
			}
		}
		v.pieces += len(g.Planes) * len(g.Pairs)
	}
	return nil
}

// reaches reports whether the stream's device can address r.
func (s *Stream) reaches(r *mem.Region) error {
	if r.Dev() == 0 {
		return fmt.Errorf("%s has no device address: %w", r, errdefs.ErrInvalid)
	}
	if r.Kind() == mem.KindDevice && r.Device() != s.index {
		return fmt.Errorf("%s does not belong to device %d: %w", r, s.index, errdefs.ErrInvalid)
	}
	return nil
}

func ceilDiv(n, by int64) int64 { return (n + by - 1) / by }
