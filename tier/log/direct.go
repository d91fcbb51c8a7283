package log

import (
	"context"
	"fmt"
	"io"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
)

var _ tier.DirectReader = (*Tier)(nil)

// ReadDirect implements tier.DirectReader. It reads the header to host memory, checks it as Read
// does, and then reads all shards by one transfer. Compact records have no header before their
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
		return fail(fmt.Errorf("%w: the log keeps blocks of this length without a header: %w", tier.ErrNotDirect, errdefs.ErrNotSupported))
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
		// Its old place may have become a hole during the read.
		return sums, nil, fmt.Errorf("%w: it was moved", tier.ErrNotDirect)
	}
	return sums, nil, nil
}

// forgetDirect closes a segment that is kept open for direct reads, before its name goes.
func (t *Tier) forgetDirect(g *segment) {
	if t.cfg.Direct != nil {
		t.cfg.Direct.Forget(t.dir, segmentName(g.number))
	}
}
