package log

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
)

var (
	_ tier.DirectReader = (*Tier)(nil)
	_ tier.DirectWriter = (*Tier)(nil)
)

// ReadDirect implements tier.DirectReader. It reads the header to host memory, checks it like Read,
// and then reads all shards by one transfer. Compact records have no header in front of their
// shards, and are not read directly.
func (t *Tier) ReadDirect(ctx context.Context, key block.Key, dst mem.Extent, sums []uint64) ([]uint64, <-chan struct{}, error) {
	fail := func(err error) ([]uint64, <-chan struct{}, error) {
		return sums, nil, fmt.Errorf("read block %s directly: %w", key, err)
	}
	f, err := t.formats.Of(key)
	if err == nil {
		err = dst.Validate()
	}
	switch {
	case err != nil:
		return fail(err)
	case dst.Len != f.Layout.ImageBytes():
		return fail(fmt.Errorf("the extent has %d bytes, an image %d: %w", dst.Len, f.Layout.ImageBytes(), errdefs.ErrInvalid))
	case t.cfg.Direct == nil:
		return fail(fmt.Errorf("%w: %w", tier.ErrNotDirect, errdefs.ErrNotSupported))
	case kindOf(f) != whole:
		return fail(errCompact)
	}
	if err := t.beginOp(ctx); err != nil {
		return sums, nil, err
	}
	defer t.ops.EndOp()
	n := len(sums)
	sums, quiesced, err := t.getDirect(ctx, f, key, dst, sums)
	if err != nil {
		return sums[:n], quiesced, fmt.Errorf("read block %s directly: %w", key, err)
	}
	t.count.hits.Add(1)
	t.count.readBytes.Add(dst.Len)
	t.used(key)
	return sums, nil, nil
}

func (t *Tier) getDirect(ctx context.Context, f block.Format, key block.Key, dst mem.Extent, sums []uint64) (_ []uint64, quiesced <-chan struct{}, err error) {
	e, ok := t.table.get(key)
	if !ok {
		return sums, nil, fmt.Errorf("%w: the log does not have it", tier.ErrNotDirect)
	}
	g := t.segments.acquire(e.segment)
	if g == nil {
		return sums, nil, fmt.Errorf("%w: it was moved", tier.ErrNotDirect)
	}
	defer func() {
		if g.release() != nil {
			t.count.errors.Add(1) // the caller verifies the data
		}
	}()
	file, err := t.cfg.Direct.Open(ctx, t.dir, segmentName(g.number))
	if err != nil {
		return sums, nil, tier.NotDirect(ctx, err)
	}
	defer file.Release()
	head := make([]byte, f.Layout.HeaderBytes())
	if _, err := io.ReadFull(io.NewSectionReader(file, e.off(), int64(len(head))), head); err != nil {
		return sums, nil, tier.NotDirect(ctx, err)
	}
	if sums, err = f.HeaderSums(sums, head, key); err != nil {
		return sums, nil, tier.NotDirect(ctx, err)
	}
	from := int64(len(head))
	if quiesced, err = file.ReadDirect(ctx, dst.Sub(from, dst.Len-from), e.off()+from); err != nil {
		return sums, quiesced, fmt.Errorf("%w: %w", tier.ErrDirectFailed, err)
	}
	if now, ok := t.table.get(key); !ok || now.place != e.place {
		// During the read a hole may have replaced the block's old place.
		return sums, nil, fmt.Errorf("%w: it was moved", tier.ErrNotDirect)
	}
	return sums, nil, nil
}

// forgetDirect closes a segment that is kept open for direct reads. Call it before the segment is
// removed.
func (t *Tier) forgetDirect(g *segment) {
	if t.cfg.Direct != nil {
		t.cfg.Direct.Forget(t.dir, segmentName(g.number))
	}
}

// CanPutDirect implements tier.DirectWriter.
func (t *Tier) CanPutDirect() error {
	if t.cfg.Direct == nil {
		return fmt.Errorf("%w: %w", tier.ErrNotDirect, errdefs.ErrNotSupported)
	}
	for _, f := range t.formats {
		if kindOf(f) != whole {
			return errCompact
		}
	}
	return nil
}

var errCompact = fmt.Errorf("%w: the log keeps blocks of this length without a header: %w", tier.ErrNotDirect, errdefs.ErrNotSupported)

// PutDirect implements tier.DirectWriter. The block forms a separate group. Its image is stored
// by one transfer, and then the header of the group by a write of the host. The block is verified
// when it is read.
func (t *Tier) PutDirect(ctx context.Context, key block.Key, src mem.Extent) (written bool, _ <-chan struct{}, err error) {
	f, err := t.formats.Of(key)
	if err == nil {
		err = errors.Join(src.Validate(), t.CanPutDirect())
	}
	if err == nil && src.Len != f.Layout.ImageBytes() {
		err = fmt.Errorf("the extent has %d bytes, an image %d: %w", src.Len, f.Layout.ImageBytes(), errdefs.ErrInvalid)
	}
	if err != nil {
		return false, nil, fmt.Errorf("write block %s directly: %w", key, err)
	}
	if err := t.beginOp(ctx); err != nil {
		return false, nil, err
	}
	defer t.ops.EndOp()
	j := &job{t: t, key: key, result: &err, pending: pending{src: src}}
	if t.cfg.ReadOnly {
		j.err = errReadOnly
		j.finish()
		return false, nil, err
	}
	t.setRecord(&j.pending, key, block.SumTree)
	for jobs := []*job{j}; len(jobs) > 0; {
		jobs = t.putRound(ctx, jobs)
	}
	return err == nil && j.pending.put != nil, j.pending.quiesced, err
}

// writeDirect writes the image of a block of PutDirect. The block begins at off. For other blocks
// it does nothing. It does not stop early, because other calls may wait for the group.
func (a *appender) writeDirect(p *pending, off int64) error {
	if p.src.Len == 0 {
		return nil
	}
	if a.direct == nil {
		f, err := a.t.cfg.Direct.OpenWriter(a.t.dir, segmentName(a.head.number), 0)
		if err != nil {
			return err
		}
		a.direct = f
	}
	quiesced, err := a.direct.WriteDirect(context.Background(), p.src, off)
	if p.quiesced = quiesced; err != nil {
		return fmt.Errorf("%w: %w", tier.ErrDirectFailed, err)
	}
	return nil
}

// closeDirect closes the current segment's file for direct writes.
func (a *appender) closeDirect() error {
	if a.direct == nil {
		return nil
	}
	f := a.direct
	a.direct = nil
	return f.Close()
}
