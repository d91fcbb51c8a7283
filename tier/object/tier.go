package object

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/kvlane/kvlane/internal/breaker"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/internal/usage"
)

// Tier stores blocks in an object store. All methods are safe for concurrent use.
type Tier struct {
	c       Config
	b       *bucket
	folder  string // of all blocks; ends in a slash
	notes   []string
	ops     usage.OpCounter
	locks   *usage.KeyLocks
	anchors atomic.Pointer[tier.Anchors]
	memo    memo
	count   contents

	background context.Context // ends with Close
	stop       context.CancelFunc

	hits, misses, puts, corrupt, errors, readBytes, writtenBytes, retained, unanchored atomic.Int64
}

var (
	_ tier.Placed       = (*Tier)(nil)
	_ tier.Reader       = (*Tier)(nil)
	_ tier.Keeper       = (*Tier)(nil)
	_ tier.ManyPutter   = (*Tier)(nil)
	_ tier.ReadOnlyTier = (*Tier)(nil)
	_ tier.Statter      = (*Tier)(nil)
)

// Name returns Name.
func (t *Tier) Name() string { return Name }

// Notes returns a text if the server did not answer to Open.
func (t *Tier) Notes() []string { return t.notes }

// ReadOnly implements tier.ReadOnlyTier.
func (t *Tier) ReadOnly() bool { return t.c.ReadOnly }

// SetAnchors implements tier.Placed.
func (t *Tier) SetAnchors(a *tier.Anchors) { t.anchors.Store(a) }

// mark writes the marker of the folder, or compares it if it exists.
func (t *Tier) mark(ctx context.Context) error {
	within, cancel := t.b.begin(ctx)
	defer cancel()
	m := blockdir.NewMarker(blockdir.Objects, t.c.Formats, t.c.Identities)
	encoded, err := m.Encode()
	if err != nil {
		return err
	}
	found, err := t.b.marker(within, t.folder)
	if err == nil {
		return found.Check(t.c.Formats, t.c.Identities)
	}
	if !missing(err) || t.c.ReadOnly {
		return err
	}
	name := markerName(t.folder)
	err = t.b.do(within, &t.b.writes, func(ctx context.Context) error {
		_, err := t.b.api.PutObject(ctx, &s3.PutObjectInput{
			Bucket: &t.b.name, Key: &name, Body: bytes.NewReader(encoded), IfNoneMatch: condition{}.ifNoneMatch(),
		})
		return err
	})
	if refused(err) {
		return nil // another process wrote it
	}
	return err
}

// marker reads the marker of a folder.
func (b *bucket) marker(ctx context.Context, folder string) (m blockdir.Marker, err error) {
	name := markerName(folder)
	var body []byte
	err = b.do(ctx, &b.reads, func(ctx context.Context) error {
		out, err := b.api.GetObject(ctx, &s3.GetObjectInput{Bucket: &b.name, Key: &name})
		if err != nil {
			return err
		}
		defer func() { _ = out.Body.Close() }()
		body, err = io.ReadAll(io.LimitReader(out.Body, blockdir.MaxMarker))
		return err
	})
	if err != nil {
		return m, err
	}
	if m, err = blockdir.ParseMarker(body); err != nil {
		return m, fmt.Errorf("read marker %s: %w", name, err)
	}
	return m, nil
}

const (
	statTimeout = 250 * time.Millisecond
	recount     = 10 * time.Minute
)

// contents has the number of blocks and bytes of the folder.
type contents struct {
	mu            sync.Mutex
	blocks, bytes int64
	at            time.Time     // of the last count; zero: none
	counting      chan struct{} // closed when the count in progress ends; nil: there is none
}

// add adds the blocks of this process to a count.
func (c *contents) add(blocks, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.blocks += blocks
	c.bytes += bytes
}

// startCount counts the blocks in the background, unless they were counted in the last 10 minutes.
// It returns the channel that is closed when a count ends, or nil.
func (t *Tier) startCount() <-chan struct{} {
	c := &t.count
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counting != nil || time.Since(c.at) < recount || t.ops.BeginOp(context.Background()) != nil {
		return c.counting
	}
	done := make(chan struct{})
	c.counting = done
	go func() {
		defer t.ops.EndOp()
		defer close(done)
		var blocks, bytes int64
		err := t.b.walk(t.background, t.folder, func(o *types.Object) error {
			key, ok := keyOf(t.folder, aws.ToString(o.Key))
			if ok && !t.memo.isDamaged(key, version{aws.ToString(o.ETag), unix(o.LastModified)}) {
				blocks++
				bytes += aws.ToInt64(o.Size)
			}
			return nil
		})
		c.mu.Lock()
		defer c.mu.Unlock()
		c.counting = nil
		if err == nil {
			c.blocks, c.bytes, c.at = blocks, bytes, time.Now()
		}
	}()
	return done
}

// walk calls f for all objects with a prefix, in the order of their names.
func (b *bucket) walk(ctx context.Context, prefix string, f func(*types.Object) error) error {
	in := &s3.ListObjectsV2Input{Bucket: &b.name, Prefix: &prefix}
	for {
		var out *s3.ListObjectsV2Output
		within, cancel := b.begin(ctx)
		err := b.do(within, &b.reads, func(ctx context.Context) (err error) {
			out, err = b.api.ListObjectsV2(ctx, in)
			return err
		})
		cancel()
		if err != nil {
			return err
		}
		for i := range out.Contents {
			if err := f(&out.Contents[i]); err != nil {
				return err
			}
		}
		if !aws.ToBool(out.IsTruncated) || out.NextContinuationToken == nil {
			return nil
		}
		in.ContinuationToken = out.NextContinuationToken
	}
}

// Stats returns the counters. Blocks and Bytes are those of the folder when it was last listed, in
// the last 10 minutes, with the changes of this process since. Stats waits for the listing for up
// to 250 ms.
func (t *Tier) Stats() tier.Stats {
	if counted := t.startCount(); counted != nil {
		wait := time.NewTimer(statTimeout)
		defer wait.Stop()
		select {
		case <-counted:
		case <-wait.C:
		}
	}
	st := tier.Stats{
		Hits: t.hits.Load(), Misses: t.misses.Load(), Puts: t.puts.Load(), Corrupt: t.corrupt.Load(), Errors: t.errors.Load(),
		ReadBytes: t.readBytes.Load(), WrittenBytes: t.writtenBytes.Load(), Retained: t.retained.Load(), Failure: t.b.failure(),
	}
	t.count.mu.Lock()
	defer t.count.mu.Unlock()
	if !t.count.at.IsZero() {
		st.Blocks, st.Bytes = t.count.blocks, t.count.bytes
	}
	return st
}

// RequestStats has the figures of the tier that tier.Stats does not have.
type RequestStats struct {
	Requests    int64 // including retries
	Retries     int64
	Unavailable int64         // requests without an answer, and those that a breaker refused
	Timeouts    int64         // requests that ended with their operation's deadline
	Unanchored  int64         // blocks that were placed by their own key
	Reads       breaker.Stats // of the breaker of reads
	Writes      breaker.Stats
}

// RequestStats returns the figures of the requests.
func (t *Tier) RequestStats() RequestStats {
	return RequestStats{
		Requests: t.b.requests.Load(), Retries: t.b.retries.Load(), Unavailable: t.b.unavailable.Load(), Timeouts: t.b.timeouts.Load(),
		Unanchored: t.unanchored.Load(), Reads: t.b.reads.breaker.Stats(), Writes: t.b.writes.breaker.Stats(),
	}
}

// Close ends background work, waits for running operations and closes the connections.
func (t *Tier) Close(ctx context.Context) error {
	t.ops.Close()
	t.stop()
	err := t.ops.Release(ctx, nil, func() error {
		t.b.close()
		return nil
	})
	if err != nil {
		return fmt.Errorf("close object tier: %w", err)
	}
	return nil
}
