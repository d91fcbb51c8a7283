package transfer

import (
	"slices"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/wire"
)

// part is a piece of a batch that is transferred and retried as a whole. It has one operation and
// lies in one buffer of a segment.
type part struct {
	op    Op
	to    *Remote
	buf   *remoteBuffer
	shape shape // offsets in the segment
	bytes int64
	tasks []int // indexes of its tasks in the batch

	// The local memory is list, or the local pages of pairs in planes.
	list   []mem.Extent
	planes []PagePlane
	pairs  []PagePair

	minPath Path // first path to try; earlier ones have failed or do not support the part
}

// Maximum lengths of parts that use imported memory. Host memory is copied by several cores in
// parallel, so parts are shorter. For device memory they are longer: NVLink is idle between two
// kernels for the time that a few MiB take.
const (
	sharedPartBytes = 128 << 20
	nvlinkPartBytes = 1 << 30
)

// extents returns the local memory of the part in the order of its shape.
func (p *part) extents() []mem.Extent {
	if p.planes == nil {
		return p.list
	}
	list := make([]mem.Extent, 0, len(p.planes)*len(p.pairs))
	for i := range p.planes {
		for _, pair := range p.pairs {
			list = wire.Append(list, p.planes[i].local(pair.Local))
		}
	}
	return list
}

// cutter divides tasks into parts and merges adjacent tasks.
type cutter struct {
	e     *Engine
	parts []*part
	open  *part // last part, if another task may extend it
}

// limit returns the maximum length of a part in buffer b.
func (c *cutter) limit(b *remoteBuffer) int64 {
	switch {
	case b.imported == nil:
		return c.e.o.PartBytes
	case b.imported.Region().Kind() == mem.KindDevice:
		return nvlinkPartBytes
	}
	return sharedPartBytes
}

// add adds a valid task with index i.
func (c *cutter) add(i int, t *Task) error {
	if t.Pages != nil {
		c.open = nil
		return c.addPages(i, t)
	}
	if t.Local.Len == 0 {
		return nil
	}
	buf, err := t.Segment.buffer(t.Offset, t.Local.Len)
	if err != nil {
		return err
	}
	limit := c.limit(buf)
	for local, off := t.Local, t.Offset; local.Len > 0; {
		p := c.open
		if p == nil || p.op != t.Op || p.to != t.Segment || p.buf != buf || p.bytes >= limit || len(p.shape.planes) == maxPlanes {
			p = &part{op: t.Op, to: t.Segment, buf: buf, shape: shape{pages: pageZero}}
			c.open = p
			c.parts = append(c.parts, p)
		}
		n := min(local.Len, limit-p.bytes)
		p.append(off, local.Sub(0, n))
		if k := len(p.tasks); k == 0 || p.tasks[k-1] != i {
			p.tasks = append(p.tasks, i)
		}
		local, off = local.Sub(n, local.Len-n), off+n
	}
	return nil
}

// append adds a local extent at segment offset off. It merges the extent with its predecessor if
// both sides are adjacent.
func (p *part) append(off int64, e mem.Extent) {
	p.list = wire.Append(p.list, e)
	p.bytes += e.Len
	if k := len(p.shape.planes); k > 0 {
		if last := &p.shape.planes[k-1]; last.base+last.bytes == off {
			last.bytes += e.Len
			return
		}
	}
	p.shape.planes = append(p.shape.planes, plane{base: off, bytes: e.Len})
}

// addPages splits a page task into parts of whole planes. It also splits planes that exceed the
// limit.
func (c *cutter) addPages(i int, t *Task) error {
	pg := t.Pages
	if len(pg.Pairs) == 0 {
		return nil
	}
	remote := make([]uint32, len(pg.Pairs))
	for k, pair := range pg.Pairs {
		remote[k] = pair.Remote
	}
	last := slices.Max(remote)
	for first := 0; first < len(pg.Planes); {
		pl := &pg.Planes[first]
		// The segment may have been refreshed after the task was validated.
		buf, err := pl.buffer(t.Segment, last)
		if err != nil {
			return err
		}
		limit := c.limit(buf)
		pages := min(int(max(limit/pl.Bytes, 1)), len(pg.Pairs), maxPages)
		planes := 1
		if pages == len(pg.Pairs) {
			planes = together(t, first, last, limit, buf)
		}
		for at := 0; at < len(pg.Pairs); at += pages {
			end := min(at+pages, len(pg.Pairs))
			p := &part{
				op: t.Op, to: t.Segment, buf: buf, tasks: []int{i},
				planes: pg.Planes[first : first+planes], pairs: pg.Pairs[at:end], shape: shape{pages: remote[at:end]},
			}
			for _, pl := range p.planes {
				p.shape.planes = append(p.shape.planes, plane{pl.RemoteBase, pl.RemoteStride, pl.Bytes})
			}
			p.bytes = p.shape.bytes()
			c.parts = append(c.parts, p)
		}
		first += planes
	}
	return nil
}

// together returns the number of planes, starting at first, that fit into one part with all of
// their pages.
func together(t *Task, first int, last uint32, limit int64, buf *remoteBuffer) (n int) {
	pages := int64(len(t.Pages.Pairs))
	var bytes int64
	for i := range t.Pages.Planes[first:] {
		pl := &t.Pages.Planes[first+i]
		b, err := pl.buffer(t.Segment, last)
		if bytes += pl.Bytes * pages; n > 0 && (err != nil || b != buf || bytes > limit || (n+1)*int(pages) > maxPieces || n == maxPlanes) {
			break
		}
		n++
	}
	return n
}
