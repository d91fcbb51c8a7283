package object

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// Get reads and verifies a block. A server that is slow or gone causes ErrNotFound. A damaged image
// is read twice before the object counts as damaged.
func (t *Tier) Get(ctx context.Context, key block.Key, dst mem.Extent) error {
	return t.get(ctx, key, dst, t.c.Formats.Verify)
}

// Read reads a block like Get, but does not verify the shards.
func (t *Tier) Read(ctx context.Context, key block.Key, dst mem.Extent) error {
	return t.get(ctx, key, dst, t.c.Formats.VerifyHeader)
}

func (t *Tier) get(ctx context.Context, key block.Key, dst mem.Extent, verify func([]byte, block.Key) error) error {
	buf, err := blockdir.Image(t.c.Formats, key, dst)
	if err != nil {
		return fmt.Errorf("read block %s: %w", key, err)
	}
	if err := t.ops.BeginOp(ctx); err != nil {
		return fmt.Errorf("read block %s: %w", key, err)
	}
	defer t.ops.EndOp()
	within, cancel := t.b.begin(ctx)
	defer cancel()
	switch err = t.read(within, key, buf, verify); {
	case err == nil:
		t.hits.Add(1)
		t.readBytes.Add(int64(len(buf)))
		return nil
	case errors.Is(err, errdefs.ErrCorrupt):
		t.corrupt.Add(1)
	case missing(err), errors.Is(err, tier.ErrUnavailable):
		err = fmt.Errorf("%w: %v", errdefs.ErrNotFound, err) //nolint:errorlint // it is a miss
	default:
		return fmt.Errorf("read block %s: %w", key, err)
	}
	t.misses.Add(1)
	return fmt.Errorf("read block %s: %w", key, err)
}

// read reads a block into buf. Damaged objects are remembered.
func (t *Tier) read(ctx context.Context, key block.Key, buf []byte, verify func([]byte, block.Key) error) error {
	if t.memo.missed(key) {
		return fmt.Errorf("it was missing less than %v ago: %w", missTime, errdefs.ErrNotFound)
	}
	name, since, reads := t.place(key).name, t.memo.begin(), 0
	var v version
	err := t.b.do(ctx, &t.b.reads, func(ctx context.Context) (err error) {
		reads++
		v, err = t.b.readObject(ctx, t.c.PartBytes, name, buf, func(v version) error {
			if t.memo.isDamaged(key, v) {
				return fmt.Errorf("it was found damaged: %w", errdefs.ErrNotFound)
			}
			return nil
		})
		if err == nil {
			err = verify(buf, key)
		}
		if damage := errors.Is(err, errdefs.ErrCorrupt) || errors.Is(err, errdefs.ErrMismatch); damage && reads == 1 {
			return fmt.Errorf("%w: %w", errDamagedOnce, err)
		} else if damage {
			return corrupt("%v", err)
		}
		return err
	})
	switch {
	case errors.Is(err, errDamagedOnce): // there was no second response
		return fmt.Errorf("%w: %v", errdefs.ErrNotFound, err) //nolint:errorlint // the object may be intact
	case errors.Is(err, errdefs.ErrCorrupt):
		if t.memo.addDamage(key, v) {
			t.count.add(-1, -int64(len(buf)))
			t.c.Events.Removed(Name, key)
		}
	case err != nil && missing(err):
		t.memo.addMisses(since, []block.Key{key})
	}
	return err
}

// readObject reads an object into buf. Objects that are longer than part are read in parts,
// concurrently. check examines the version before the bytes are read. It returns ErrCorrupt if the
// object has another length.
func (b *bucket) readObject(ctx context.Context, part int64, name string, buf []byte, check func(version) error) (version, error) {
	size := int64(len(buf))
	first := min(part, size)
	in := &s3.GetObjectInput{Bucket: &b.name, Key: &name}
	if first < size {
		in.Range = byteRange(0, first)
	}
	out, err := b.api.GetObject(ctx, in)
	if err != nil {
		return version{}, err
	}
	defer func() { _ = out.Body.Close() }()
	v := version{aws.ToString(out.ETag), unix(out.LastModified)}
	if err := check(v); err != nil {
		return v, err
	}
	if n := length(out); n != size {
		return v, corrupt("the object has %d bytes, an image %d", n, size)
	}
	rest := make([]error, (size-1)/part)
	var wg sync.WaitGroup
	for i := range rest {
		wg.Go(func() {
			off := int64(i+1) * part
			rest[i] = b.readPart(ctx, name, out.ETag, buf[off:min(off+part, size)], off)
		})
	}
	_, err = io.ReadFull(out.Body, buf[:first])
	wg.Wait()
	return v, errors.Join(append(rest, early(err))...)
}

// readPart reads the bytes of an object from off, if the object still has the ETag.
func (b *bucket) readPart(ctx context.Context, name string, etag *string, buf []byte, off int64) error {
	out, err := b.api.GetObject(ctx, &s3.GetObjectInput{
		Bucket: &b.name, Key: &name, IfMatch: etag, Range: byteRange(off, int64(len(buf))),
	})
	if err != nil {
		return err
	}
	defer func() { _ = out.Body.Close() }()
	_, err = io.ReadFull(out.Body, buf)
	return early(err)
}

// early replaces the error of an empty body by that of one that ends early.
func early(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func byteRange(off, n int64) *string { return aws.String(fmt.Sprintf("bytes=%d-%d", off, off+n-1)) }

// length returns the length of an object, or -1.
func length(out *s3.GetObjectOutput) int64 {
	if out.ContentRange == nil {
		return aws.ToInt64(out.ContentLength)
	}
	_, total, _ := strings.Cut(*out.ContentRange, "/")
	n, err := strconv.ParseInt(total, 10, 64)
	if err != nil {
		return -1
	}
	return n
}
