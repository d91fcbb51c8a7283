package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

var (
	_ tier.DirectReader = (*Tier)(nil)
	_ tier.DirectWriter = (*Tier)(nil)
)

// ReadDirect implements tier.DirectReader. It reads the header to host memory, checks it like Read,
// and then reads all shards by one transfer.
func (t *Tier) ReadDirect(ctx context.Context, key block.Key, dst mem.Extent, sums []uint64) ([]uint64, <-chan struct{}, error) {
	fail := func(err error) ([]uint64, <-chan struct{}, error) {
		return sums, nil, fmt.Errorf("read block %s directly: %w", key, err)
	}
	if t.cfg.Direct == nil {
		return fail(fmt.Errorf("%w: %w", tier.ErrNotDirect, errdefs.ErrNotSupported))
	}
	f, err := t.formats.Of(key)
	if err == nil {
		err = dst.Validate()
	}
	if err == nil && dst.Len != f.Layout.ImageBytes() {
		err = fmt.Errorf("the extent has %d bytes, an image %d: %w", dst.Len, f.Layout.ImageBytes(), errdefs.ErrInvalid)
	}
	if err != nil {
		return fail(err)
	}
	if err := t.beginOp(ctx); err != nil {
		return sums, nil, err
	}
	defer t.endOp()
	sums, quiesced, err := t.getDirect(ctx, dirOf(t.dirs, key), f, key, dst, sums)
	return sums, quiesced, t.countRead(key, dst.Len, err)
}

func (t *Tier) getDirect(ctx context.Context, d *dir, f block.Format, key block.Key, dst mem.Extent, sums []uint64) (_ []uint64, quiesced <-chan struct{}, err error) {
	file, err := t.cfg.Direct.Open(ctx, d.Dir, blockName(key))
	if err != nil {
		return sums, nil, tier.NotDirect(ctx, err)
	}
	defer file.Release()
	n := len(sums)
	info, err := file.Stat()
	if err == nil {
		sums, err = t.readHead(file, info, f, key, sums)
	}
	if err != nil {
		return sums[:n], nil, tier.NotDirect(ctx, err)
	}
	head := f.Layout.HeaderBytes()
	if quiesced, err = file.ReadDirect(ctx, dst.Sub(head, dst.Len-head), head); err != nil {
		return sums[:n], quiesced, fmt.Errorf("%w: %w", tier.ErrDirectFailed, err)
	}
	t.touch(d, key, info)
	return sums, nil, nil
}

// readHead reads and checks the header of a file.
func (t *Tier) readHead(file dirfs.DirectFile, info dirfs.Info, f block.Format, key block.Key, sums []uint64) ([]uint64, error) {
	if err := t.checkInfo(key, info); err != nil {
		return sums, err
	}
	head := make([]byte, f.Layout.HeaderBytes())
	if _, err := io.ReadFull(io.NewSectionReader(file, 0, int64(len(head))), head); err != nil {
		return sums, err
	}
	return f.HeaderSums(sums, head, key)
}

// forgetDirect closes the file that is kept open for direct reads of a block. Call it before the
// file is removed or renamed.
func (t *Tier) forgetDirect(d *dir, key block.Key) {
	if t.cfg.Direct != nil {
		t.cfg.Direct.Forget(d.Dir, blockName(key))
	}
}

// content is the image of a block, in host memory or device memory.
type content struct {
	image    []byte
	src      mem.Extent      // the image, if image is nil
	written  bool            // else the tier had the block
	quiesced <-chan struct{} // see tier.DirectWriter; if set, the write is not tried again
}

func (c *content) bytes() int64 {
	if c.image == nil {
		return c.src.Len
	}
	return int64(len(c.image))
}

// writeContent writes a new file. On failure it removes the file.
func (t *Tier) writeContent(ctx context.Context, d *dir, name string, c *content, sync bool) (dirfs.Info, error) {
	if c.image != nil {
		return blockdir.WriteFile(d, name, c.image, sync)
	}
	f, err := t.cfg.Direct.OpenWriter(d.Dir, name, os.O_CREATE|os.O_EXCL)
	if err != nil {
		return dirfs.Info{}, err
	}
	if c.quiesced, err = f.WriteDirect(ctx, c.src, 0); err != nil {
		err = fmt.Errorf("%w: %w", tier.ErrDirectFailed, err)
	}
	return blockdir.FinishFile(d, name, f, err, sync)
}

// CanPutDirect implements tier.DirectWriter.
func (t *Tier) CanPutDirect() error {
	if t.cfg.Direct == nil {
		return fmt.Errorf("%w: %w", tier.ErrNotDirect, errdefs.ErrNotSupported)
	}
	return nil
}

// PutDirect implements tier.DirectWriter. It stores the image by one transfer. The block is verified
// when it is read.
func (t *Tier) PutDirect(ctx context.Context, key block.Key, src mem.Extent) (written bool, _ <-chan struct{}, err error) {
	fail := func(err error) (bool, <-chan struct{}, error) {
		return false, nil, fmt.Errorf("write block %s directly: %w", key, err)
	}
	f, err := t.formats.Of(key)
	if err == nil {
		err = errors.Join(src.Validate(), t.CanPutDirect())
	}
	if err == nil && src.Len != f.Layout.ImageBytes() {
		err = fmt.Errorf("the extent has %d bytes, an image %d: %w", src.Len, f.Layout.ImageBytes(), errdefs.ErrInvalid)
	}
	if err != nil {
		return fail(err)
	}
	if err := t.beginOp(ctx); err != nil {
		return false, nil, err
	}
	defer t.endOp()
	c := &content{src: src}
	if err := t.put(ctx, key, c); err != nil {
		err = fmt.Errorf("write block %s directly: %w", key, err)
		if errors.Is(err, tier.ErrDirectFailed) && !errors.Is(err, errdefs.ErrNoSpace) {
			return false, c.quiesced, err // Put follows
		}
		return false, c.quiesced, t.fail(err)
	}
	return c.written, nil, nil
}
