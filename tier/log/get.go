package log

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/internal/usage"
)

// Get reads and verifies the block. It returns only when no read is in progress, however long that
// takes: see the package comment.
func (t *Tier) Get(ctx context.Context, key block.Key, dst mem.Extent) error {
	return t.getInto(ctx, key, dst, true)
}

// Read reads the block like Get, but without verifying the shards. It checks length, header,
// identity and key. A block that fails goes to quarantine.
func (t *Tier) Read(ctx context.Context, key block.Key, dst mem.Extent) error {
	return t.getInto(ctx, key, dst, false)
}

func (t *Tier) getInto(ctx context.Context, key block.Key, dst mem.Extent, every bool) error {
	buf, err := blockdir.Image(t.formats, key, dst)
	if err != nil {
		return fmt.Errorf("read block %s: %w", key, err)
	}
	if err := t.beginOp(ctx); err != nil {
		return err
	}
	defer t.ops.EndOp()
	e, err := t.load(ctx, key, buf, every)
	switch {
	case err == nil:
		t.count.hits.Add(1)
		t.count.readBytes.Add(int64(len(buf)))
		t.used(key)
		return nil
	case errors.Is(err, errdefs.ErrNotFound):
		t.count.misses.Add(1)
	case errors.Is(err, errdefs.ErrCorrupt):
		t.count.corrupt.Add(1)
		t.count.misses.Add(1)
		_, serr := t.setAside(ctx, key, e, buf)
		err = errors.Join(err, serr)
	default:
		t.count.errors.Add(1)
		// The next Put checks the block again, and replaces it if it is still unreadable.
		t.table.unmark(key, e.place, seen)
	}
	return fmt.Errorf("read block %s: %w", key, err)
}

// load fills buf with the block's image. It verifies the whole image if every is set, and otherwise
// only the header. It returns the entry that it read, and ErrCorrupt if its bytes are wrong.
func (t *Tier) load(ctx context.Context, key block.Key, buf []byte, every bool) (entry, error) {
	for {
		e, ok := t.table.get(key)
		if !ok {
			return e, errdefs.ErrNotFound
		}
		if g := t.segments.acquire(e.segment); g != nil {
			err := t.read(ctx, g, e, key, buf, every)
			if cerr := g.release(); cerr != nil {
				t.count.errors.Add(1) // ignored: the data are verified
			}
			if err == nil && every && e.flags&seen == 0 {
				t.table.mark(key, e.place, seen)
			}
			if !errors.Is(err, errdefs.ErrCorrupt) {
				return e, err
			}
			if t.cfg.ReadOnly && inHole(g, e) {
				return e, errdefs.ErrNotFound
			}
			if now, ok := t.table.get(key); ok && now.place == e.place {
				return e, err
			}
			continue // the block was evicted or moved, and a hole replaced it, during the read
		}
		// The block was moved or evicted: the index changes before a segment is removed.
		if now, ok := t.table.get(key); ok && now.place == e.place {
			return e, fmt.Errorf("segment %d does not exist: %w", e.segment, errdefs.ErrCorrupt)
		}
	}
}

func (t *Tier) read(ctx context.Context, g *segment, e entry, key block.Key, buf []byte, every bool) error {
	f := t.formats[e.group]
	verify := f.Verify
	if !every {
		verify = f.VerifyHeader
	}
	if kindOf(f) == whole {
		if err := dirfs.ReadFull(ctx, g.file, buf, e.off()); err != nil {
			return err
		}
		return corrupt(verify(buf, key))
	}
	r, err := t.record(ctx, g, e)
	if err != nil {
		return err
	}
	head := f.Layout.HeaderBytes()
	if err := dirfs.ReadFull(ctx, g.file, buf[head:], e.off()); err != nil {
		return err
	}
	for i := range f.Layout.Shards() { // SealWith clears the padding, so check it first
		end := f.Layout.ShardOff(i) + f.Layout.ShardBytes(i)
		if len(bytes.Trim(buf[end:pages(end)*page], "\x00")) > 0 {
			return fmt.Errorf("padding after shard %d is not zero: %w", i, errdefs.ErrCorrupt)
		}
	}
	f.Sum = r.algo
	if err := f.SealWith(buf, key, r.sums); err != nil {
		return corrupt(err)
	}
	return corrupt(verify(buf, key))
}

// corrupt wraps ErrCorrupt in an error about misplaced bytes.
func corrupt(err error) error {
	if err != nil && !errors.Is(err, errdefs.ErrCorrupt) {
		return fmt.Errorf("%w: %w", errdefs.ErrCorrupt, err)
	}
	return err
}

// record returns the record of a block in the header of its group.
func (t *Tier) record(ctx context.Context, g *segment, e entry) (*record, error) {
	at := position{uint64(e.segment), e.header()}
	h := t.cache.get(at)
	if h == nil {
		var err error
		if h, err = readHeader(ctx, g.file, at, t.id, t.formats); err != nil {
			return nil, err
		}
		t.cache.put(at, h)
	}
	off := e.off() - at.off
	for i := range h.records {
		if r := &h.records[i]; r.off == off && r.kind != deleted {
			if r.group != e.group || r.key != e.key {
				break
			}
			return r, nil
		}
	}
	return nil, fmt.Errorf("the group at %d of segment %d has another block at this place: %w", at.off, at.segment, errdefs.ErrCorrupt)
}

// headerCache caches the most recently read group headers.
type headerCache struct {
	mu   sync.Mutex
	all  map[position]*header
	ring [cachedHeaders]position // a circular buffer of the keys
	next int
}

// cachedHeaders bounds the cache. The header of a group of 32 blocks takes about 8 KiB.
const cachedHeaders = 1024

func (c *headerCache) get(at position) *header {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[at]
}

func (c *headerCache) put(at position, h *header) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = make(map[position]*header)
	}
	if c.all[at] != nil {
		return
	}
	delete(c.all, c.ring[c.next])
	c.ring[c.next] = at
	c.next = (c.next + 1) % len(c.ring)
	c.all[at] = h
}

// setAside removes a corrupt block from the index and copies its bytes to quarantine. It returns
// the name of the copy, or "".
func (t *Tier) setAside(ctx context.Context, key block.Key, bad entry, image []byte) (kept string, err error) {
	if t.cfg.ReadOnly {
		return "", nil
	}
	if err := t.locks.Lock(ctx, t.ctx.Done(), key, usage.Removing); err != nil {
		return "", fmt.Errorf("quarantine it: %w", err)
	}
	defer t.locks.Unlock(key)
	return t.setAsideOwned(ctx, key, bad, image), nil
}

// setAsideOwned implements setAside. The caller has locked the key. Failures are only counted: the
// block is removed in any case.
func (t *Tier) setAsideOwned(ctx context.Context, key block.Key, bad entry, image []byte) (kept string) {
	e, ok := t.table.remove(key, func(now entry) bool { return now.place == bad.place })
	if !ok {
		return ""
	}
	t.uncount(e)
	t.dropPin(key)
	t.noteRemoval(key, tier.CauseDamage)
	if err := t.tombstone(ctx, key); err != nil {
		t.count.errors.Add(1) // after a restart the block is found corrupt again
	}
	if t.cfg.QuarantineMax < 0 {
		return ""
	}
	name := blockdir.Quarantine + "/" + blockdir.QuarantineName(t.clock.Now(), key)
	err := blockdir.Mkdir(t.dir, blockdir.Quarantine)
	if err == nil {
		_, err = blockdir.WriteFile(t.dir, name, image, false)
	}
	if err == nil {
		kept = name
		t.count.quarantined.Add(1)
		err = blockdir.TrimQuarantine(t.dir, t.cfg.QuarantineMax)
	}
	if err != nil {
		t.count.errors.Add(1)
	}
	return kept
}
