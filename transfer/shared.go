package transfer

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/wire"
)

// Imported memory is copied like other memory: by the CPU if both sides have CPU addresses,
// otherwise by the device's stream. A copy is successful if the memory was still exported when the
// copy ended. No fence is needed, because this process makes the copies itself.

// beginImported begins to copy a part through imported memory. If forced is not PathNone, it must
// be the path of that memory. abort ends the copy early. On error nothing was begun.
func (e *Engine) beginImported(ctx context.Context, p *part, forced Path, finish func(error)) (path Path, abort func(), err error) {
	if err := p.buf.usable(); err != nil {
		return PathNone, nil, err
	}
	there := p.buf.imported.Region()
	path = PathShm
	if there.Kind() == mem.KindDevice {
		path = PathNVLink
	}
	if forced != PathNone && forced != path {
		return PathNone, nil, errdefs.WithRemedy(fmt.Errorf("the memory is reached by %s: %w", path, errdefs.ErrNotSupported),
			"select that path (--protocol), or none (--protocol auto)")
	}
	if there.Bytes() != nil && allHost(p) {
		b := p.listed(there)
		holds, err := keepMapped(b)
		if err != nil {
			return PathNone, nil, err
		}
		stop, cancel := context.WithCancel(ctx)
		go func() {
			defer cancel()
			err := copyHost(stop, b)
			if err == nil {
				err = holds.Check()
			}
			holds.Release()
			finish(err)
		}()
		return path, cancel, nil
	}
	if e.o.Copy == nil {
		return PathNone, nil, fmt.Errorf("the copy needs a device: %w", errdefs.ErrNotSupported)
	}
	b := p.paged(there)
	if b == nil {
		b = p.listed(there)
	}
	t, err := e.o.Copy.Submit(ctx, b)
	if err != nil {
		return PathNone, nil, err
	}
	go func() {
		<-t.Done() // a stream always resolves its tickets
		finish(t.Err())
	}()
	return path, t.Cancel, nil
}

// listed returns the batch of extents for copying the part from or to imported memory.
func (p *part) listed(there *mem.Region) *mem.Batch {
	var remote []mem.Extent
	_ = p.shape.each(func(off, n int64) error { // each returns errors of the callback only
		remote = wire.Append(remote, mem.Extent{Region: there, Off: off - p.buf.Offset, Len: n})
		return nil
	})
	b := pairs(p.extents(), remote)
	if p.op == Write {
		b.Dst, b.Src = b.Src, b.Dst
	}
	return b
}

// paged returns the batch of pages for copying the part; the device computes the addresses. It
// returns nil if the part is a list, or if the remote pages are not disjoint slots.
func (p *part) paged(there *mem.Region) *mem.Batch {
	if p.planes == nil {
		return nil
	}
	pairs, slots := make([]mem.PageSlot, len(p.pairs)), int64(0)
	for i, pair := range p.pairs {
		pairs[i] = mem.PageSlot{Page: pair.Local, Slot: pair.Remote}
		slots = max(slots, int64(pair.Remote)+1)
	}
	planes, groups := make([]mem.Plane, len(p.planes)), make([]mem.PageGroup, len(p.planes))
	for i := range p.planes {
		pl := &p.planes[i]
		base := pl.RemoteBase - p.buf.Offset
		if pl.Stride < pl.Bytes || pl.RemoteStride < pl.Bytes || pl.RemoteStride > (there.Len()-base)/slots {
			return nil
		}
		planes[i] = mem.Plane{Region: pl.Region, Base: pl.Base, Stride: pl.Stride, Bytes: pl.Bytes}
		groups[i] = mem.PageGroup{Planes: planes[i : i+1], Slots: mem.Slots{Region: there, Base: base, Stride: pl.RemoteStride}, Pairs: pairs}
	}
	dir := mem.ToPages
	if p.op == Write {
		dir = mem.ToSlots
	}
	return &mem.Batch{Paged: &mem.Paged{Dir: dir, Groups: groups}}
}

func allHost(p *part) bool {
	for i := range p.planes {
		if p.planes[i].Region.Bytes() == nil {
			return false
		}
	}
	for _, e := range p.list {
		if e.Region.Bytes() == nil {
			return false
		}
	}
	return true
}

// keepMapped keeps imported memory of the batch mapped until the caller releases the result.
func keepMapped(b *mem.Batch) (holds mem.Holds, err error) {
	for i := range b.Dst {
		if err := errors.Join(holds.Add(b.Dst[i].Region), holds.Add(b.Src[i].Region)); err != nil {
			holds.Release()
			return nil, err
		}
	}
	return holds, nil
}

// copyStep is the number of bytes after which a copy checks its context.
const copyStep = 4 << 20

func copyHost(ctx context.Context, b *mem.Batch) error {
	for i := range b.Dst {
		dst, src := b.Dst[i].Bytes(), b.Src[i].Bytes()
		for at := 0; at < len(dst); at += copyStep {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			end := min(at+copyStep, len(dst))
			copy(dst[at:end], src[at:end])
		}
	}
	return nil
}

// pairs returns the batch that copies src to dst. Both lists have the same total length.
func pairs(dst, src []mem.Extent) *mem.Batch {
	b := new(mem.Batch)
	var d, r int64 // bytes already covered of the first extent of dst and of src
	for len(dst) > 0 && len(src) > 0 {
		n := min(dst[0].Len-d, src[0].Len-r)
		b.Dst, b.Src = append(b.Dst, dst[0].Sub(d, n)), append(b.Src, src[0].Sub(r, n))
		if d += n; d == dst[0].Len {
			dst, d = dst[1:], 0
		}
		if r += n; r == src[0].Len {
			src, r = src[1:], 0
		}
	}
	return b
}
