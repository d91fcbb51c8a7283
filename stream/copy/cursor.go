package copy

import (
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// cursor is how far a batch has been issued. The kernel path moves it by descriptors, the engine paths by runs; one batch
// takes one path.
type cursor struct {
	batch *mem.Batch
	// The list: copy i, from byte off on (kernel path only).
	i      int
	off    int64
	listed int // descriptors written so far
	// The Paged: the next plane and pair of a group.
	group, plane, pair int
	// The engine paths read one piece ahead of the run that they merge.
	dst, src mem.Extent
	ahead    bool
	over     bool
}

// run returns the next run: neighbours on both sides made one. ok is false when there are none left; over is set when
// this was the last.
func (c *cursor) run() (dst, src mem.Extent, ok bool) {
	for {
		d, f, more := c.piece()
		switch {
		case !more:
			ok, c.ahead, c.over = c.ahead, false, true
			return c.dst, c.src, ok
		case d.Len == 0:
		case !c.ahead:
			c.dst, c.src, c.ahead = d, f, true
		case follows(c.dst, d) && follows(c.src, f):
			c.dst.Len += d.Len
			c.src.Len += d.Len
		default:
			dst, src = c.dst, c.src
			c.dst, c.src = d, f
			return dst, src, true
		}
	}
}

// piece returns the next copy of the list, then of the Paged page by page.
func (c *cursor) piece() (dst, src mem.Extent, ok bool) {
	b := c.batch
	if c.i < len(b.Dst) {
		c.i++
		return b.Dst[c.i-1], b.Src[c.i-1], true
	}
	for b.Paged != nil && c.group < len(b.Paged.Groups) {
		g := &b.Paged.Groups[c.group]
		if c.pair == len(g.Pairs) || len(g.Planes) == 0 {
			c.group, c.pair = c.group+1, 0
			continue
		}
		pl, ps := &g.Planes[c.plane], g.Pairs[c.pair]
		if c.plane++; c.plane == len(g.Planes) {
			c.plane, c.pair = 0, c.pair+1
		}
		dst, src = g.Slots.At(ps.Slot).Sub(pl.SlotOff, pl.Bytes), pl.Page(ps.Page)
		if b.Paged.Dir == mem.ToPages {
			dst, src = src, dst
		}
		return dst, src, true
	}
	return mem.Extent{}, mem.Extent{}, false
}

func follows(a, b mem.Extent) bool { return a.Region == b.Region && a.Off+a.Len == b.Off }

// scratch holds what driver calls take, so that calling allocates nothing: the runs of one call of a BatchCopier, and a
// launch.
type scratch struct {
	dst, src []mem.Extent
	kernel   device.Kernel
}

func (s *scratch) init(n int) {
	s.dst, s.src = make([]mem.Extent, n), make([]mem.Extent, n)
}

// stepEngine issues up to engineStep runs, a copy each.
func (s *Stream) stepEngine(o *op, it *item) (done bool, err error) {
	for it.calls < engineStep && !o.at.over {
		dst, src, ok := o.at.run()
		if !ok {
			break
		}
		it.calls++
		if err := s.queue.Copy(dst, src); err != nil {
			return false, err
		}
	}
	return o.at.over, nil
}

// stepBatch issues up to batchStep runs in one call.
func (s *Stream) stepBatch(o *op, it *item) (done bool, err error) {
	n := 0
	for n < batchStep && !o.at.over {
		dst, src, ok := o.at.run()
		if !ok {
			break
		}
		s.scratch.dst[n], s.scratch.src[n] = dst, src
		n++
	}
	it.calls = batchCalls
	return o.at.over, s.paths.batcher.CopyBatch(s.scratch.dst[:n], s.scratch.src[:n])
}
