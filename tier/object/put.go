package object

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/internal/usage"
)

// condition is the condition of a write: the object has the ETag, or does not exist if that is
// empty.
type condition struct{ etag string }

func (c condition) ifMatch() *string {
	if c.etag == "" {
		return nil
	}
	return &c.etag
}

func (c condition) ifNoneMatch() *string {
	if c.etag == "" {
		return aws.String("*")
	}
	return nil
}

// Put stores a block, unless it exists. It checks the length of an existing object, and replaces
// one that a Get has found damaged. If the server is slow or gone, or refuses writes, the error
// wraps tier.ErrUnavailable.
func (t *Tier) Put(ctx context.Context, key block.Key, src mem.Extent) error {
	if err := t.put(ctx, key, src); err != nil {
		return fmt.Errorf("store block %s: %w", key, err)
	}
	return nil
}

func (t *Tier) put(ctx context.Context, key block.Key, src mem.Extent) error {
	buf, err := blockdir.Image(t.c.Formats, key, src)
	if err != nil {
		return err
	}
	if err := t.ops.BeginOp(ctx); err != nil {
		return err
	}
	defer t.ops.EndOp()
	if t.c.ReadOnly {
		return errdefs.ErrReadOnly
	}
	if err := t.c.Formats.Verify(buf, key); err != nil {
		return err
	}
	within, cancel := t.b.begin(ctx)
	defer cancel()
	if err := t.locks.Lock(within, nil, key, usage.Writing); err != nil {
		return t.b.failed(within, err)
	}
	defer t.locks.Unlock(key)
	written, err := t.store(within, key, buf)
	switch {
	case err == nil && written:
		t.puts.Add(1)
		t.writtenBytes.Add(int64(len(buf)))
		t.count.add(1, int64(len(buf)))
	case errors.Is(err, tier.ErrUnavailable):
		t.errors.Add(1)
	}
	if err == nil {
		t.memo.forget(key)
		t.c.Events.Stored(Name, key)
	}
	return err
}

// store writes an image, unless the object exists. The caller has locked the key.
func (t *Tier) store(ctx context.Context, key block.Key, buf []byte) (written bool, err error) {
	name := t.place(key).name
	var c condition
	if v, ok := t.memo.damagedVersion(key); ok {
		c.etag = v.etag
	}
	// Another process may write or delete the object between two requests.
	for range 3 {
		err = t.write(ctx, name, buf, c)
		switch {
		case err == nil:
			return true, nil
		case missing(err): // the damaged object was deleted
			c = condition{}
			continue
		case !refused(err):
			return false, err
		}
		size, v, err := t.b.head(ctx, &t.b.writes, name)
		switch {
		case err == nil && size == int64(len(buf)) && !t.memo.isDamaged(key, v):
			return false, nil
		case err == nil:
			c = condition{v.etag}
		case missing(err):
			c = condition{}
		default:
			return false, err
		}
	}
	return false, fmt.Errorf("%w: the object changes: %w", tier.ErrUnavailable, err)
}

// write writes an object under a condition. A condition that is not met is an error, see refused.
func (t *Tier) write(ctx context.Context, name string, buf []byte, c condition) error {
	if int64(len(buf)) > t.c.PartBytes {
		return t.writeParts(ctx, name, buf, c)
	}
	return t.b.do(ctx, &t.b.writes, func(ctx context.Context) error {
		in := &s3.PutObjectInput{
			Bucket: &t.b.name, Key: &name, Body: bytes.NewReader(buf), ContentLength: aws.Int64(int64(len(buf))),
			IfMatch: c.ifMatch(), IfNoneMatch: c.ifNoneMatch(), ServerSideEncryption: types.ServerSideEncryption(t.c.Encryption),
		}
		if t.c.KMSKey != "" {
			in.SSEKMSKeyId = &t.c.KMSKey
		}
		_, err := t.b.api.PutObject(ctx, in)
		return err
	})
}

// writeParts writes an object in parts, concurrently.
func (t *Tier) writeParts(ctx context.Context, name string, buf []byte, c condition) error {
	var upload *string
	err := t.b.do(ctx, &t.b.writes, func(ctx context.Context) error {
		in := &s3.CreateMultipartUploadInput{Bucket: &t.b.name, Key: &name, ServerSideEncryption: types.ServerSideEncryption(t.c.Encryption)}
		if t.c.KMSKey != "" {
			in.SSEKMSKeyId = &t.c.KMSKey
		}
		out, err := t.b.api.CreateMultipartUpload(ctx, in)
		if err == nil {
			upload = out.UploadId
		}
		return err
	})
	if err != nil {
		return err
	}
	n := (int64(len(buf)) + t.c.PartBytes - 1) / t.c.PartBytes
	parts, errs := make([]types.CompletedPart, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			part := buf[i*t.c.PartBytes : min((i+1)*t.c.PartBytes, int64(len(buf)))]
			parts[i].PartNumber = aws.Int32(int32(i + 1))
			errs[i] = t.b.do(ctx, &t.b.writes, func(ctx context.Context) error {
				out, err := t.b.api.UploadPart(ctx, &s3.UploadPartInput{
					Bucket: &t.b.name, Key: &name, UploadId: upload, PartNumber: parts[i].PartNumber, Body: bytes.NewReader(part),
				})
				if err == nil {
					parts[i].ETag = out.ETag
				}
				return err
			})
		})
	}
	wg.Wait()
	if err = errors.Join(errs...); err == nil {
		err = t.b.do(ctx, &t.b.writes, func(ctx context.Context) error {
			_, err := t.b.api.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
				Bucket: &t.b.name, Key: &name, UploadId: upload, MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
				IfMatch: c.ifMatch(), IfNoneMatch: c.ifNoneMatch(),
			})
			return err
		})
	}
	if err != nil {
		t.abort(name, upload)
	}
	return err
}

// abort removes the parts of an upload, in the background. If that fails, they remain until a
// life-cycle rule of the bucket or "kvlane store gc" removes them.
func (t *Tier) abort(name string, upload *string) {
	if t.ops.BeginOp(context.Background()) != nil {
		return
	}
	go func() {
		defer t.ops.EndOp()
		ctx, cancel := t.b.begin(t.background)
		defer cancel()
		_ = t.b.do(ctx, &t.b.writes, func(ctx context.Context) error {
			_, err := t.b.api.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &t.b.name, Key: &name, UploadId: upload})
			return err
		})
	}()
}

// PutMany stores blocks concurrently.
func (t *Tier) PutMany(ctx context.Context, keys []block.Key, srcs []mem.Extent, errs []error) {
	if len(keys) != len(srcs) || len(keys) != len(errs) {
		for i := range errs {
			errs[i] = fmt.Errorf("store %d blocks of %d images: %w", len(keys), len(srcs), errdefs.ErrInvalid)
		}
		return
	}
	workers := min(t.c.Requests, len(keys))
	var wg sync.WaitGroup
	for first := range workers {
		wg.Go(func() {
			for i := first; i < len(keys); i += workers {
				errs[i] = t.Put(ctx, keys[i], srcs[i])
			}
		})
	}
	wg.Wait()
}
