package log

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/internal/usage"
)

// Selection selects blocks for Remove.
type Selection = blockdir.Selection

// Removed is the result of Remove.
type Removed = tier.Removed

// Remove removes the selected blocks from a directory. When it returns, no process finds them
// again, also after a power failure. The time of a block is that of its segment. It returns
// ErrBusy, and names the holder, if a process has the directory open.
func Remove(ctx context.Context, dir string, sel Selection) (Removed, error) {
	return remove(ctx, dirfs.OS(), dir, sel)
}

func remove(ctx context.Context, fsys dirfs.FS, path string, sel Selection) (r Removed, err error) {
	err = withSelected(ctx, fsys, path, "remove blocks", &sel, func(t *Tier, keys []block.Key) error {
		if r, err = t.remove(ctx, keys, sel.Cause()); err != nil || len(r.Keys) == 0 {
			return err
		}
		// Free the space of the removed blocks. They stay removed if this fails.
		err = t.sealAll()
		_, cerr := t.collect(ctx, t.garbage, sweep{all: true})
		if err := errors.Join(err, cerr); err != nil {
			r.Left = errors.Join(r.Left, fmt.Errorf("free the space of removed blocks: %w", err))
		}
		return nil
	})
	return r, err
}

// withSelected opens a directory, which no process may have open, and calls f with the keys of the
// selected blocks.
func withSelected(ctx context.Context, fsys dirfs.FS, path, verb string, sel *Selection, f func(t *Tier, keys []block.Key) error) (err error) {
	m, err := markerOf(fsys, filepath.Clean(path))
	if blockdir.Gone(err) {
		err = fmt.Errorf("not a directory of blocks: %w: %w", errdefs.ErrNotFound, err)
	}
	if err != nil {
		return fmt.Errorf("%s of directory %s: %w", verb, path, err)
	}
	t, err := Open(ctx, Config{Dir: path, Formats: m.Formats(), FS: fsys})
	if err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	defer func() { err = errors.Join(err, t.Close(context.WithoutCancel(ctx))) }()
	keys, err := t.selected(&m, sel)
	if err != nil {
		return fmt.Errorf("%s of directory %s: %w", verb, path, err)
	}
	return f(t, keys)
}

// selected returns the keys of the selected blocks.
func (t *Tier) selected(m *blockdir.Marker, sel *Selection) (keys []block.Key, err error) {
	matches, times := sel.Matcher(m), make(map[uint32]time.Time)
	for _, g := range t.segments.list() {
		info, err := g.file.Stat()
		if err != nil {
			return nil, err
		}
		times[g.number] = info.Modified
	}
	var some []entry
	for i := range t.table.shards {
		some = t.table.copyShard(i, some[:0])
		for _, e := range some {
			if matches(&blockdir.Entry{Key: e.key, Modified: times[e.segment], Group: int(e.group)}) {
				keys = append(keys, e.key)
			}
		}
	}
	return keys, nil
}

// Remove implements tier.Remover, under every policy.
func (t *Tier) Remove(ctx context.Context, keys []block.Key) (r Removed, err error) {
	return t.remove(ctx, keys, tier.CauseRequest)
}

func (t *Tier) remove(ctx context.Context, keys []block.Key, cause tier.Cause) (r Removed, err error) {
	if t.cfg.ReadOnly {
		return r, fmt.Errorf("remove blocks: %w", errReadOnly)
	}
	if err := t.beginOp(ctx); err != nil {
		return r, err
	}
	defer t.ops.EndOp()
	var a *appender
	select {
	case a = <-t.first:
	case <-ctx.Done():
		return r, fmt.Errorf("remove blocks: %w", queuedErr(ctx))
	}
	defer a.release()
	defer t.removals.Flush()
	from, busy, pinned := a.headNumber(), 0, 0
	for len(keys) > 0 && err == nil {
		n := min(len(keys), removeBatch)
		inUse, pins := t.removeBatch(a, keys[:n], cause, &r)
		busy, pinned = busy+inUse, pinned+pins
		keys = keys[n:]
		err = context.Cause(ctx)
	}
	r.Left = errors.Join(append(blockdir.Staying(busy, pinned), r.Left)...)
	if serr := t.syncDeletions(context.WithoutCancel(ctx), from); serr != nil {
		return r, t.fail(fmt.Errorf("make the removal of blocks durable: %w", errors.Join(err, serr)))
	}
	if err != nil {
		return r, fmt.Errorf("remove blocks: %w", err)
	}
	return r, nil
}

// removeBatch is the number of deletions that are written together.
const removeBatch = 1024

// removeBatch removes blocks and adds them to r. It returns the number of blocks that stay because
// they are in use or pinned.
func (t *Tier) removeBatch(a *appender, keys []block.Key, cause tier.Cause, r *Removed) (busy, pinned int) {
	var recs []*pending
	var sizes []int64
	for _, key := range keys {
		if _, ok := t.table.get(key); !ok {
			continue
		}
		if t.pins.Has(key) {
			pinned++
			continue
		}
		if !t.locks.TryLockRemoving(key) {
			busy++
			continue
		}
		e, ok := t.table.get(key)
		if !ok { // removed in the meantime
			t.locks.Unlock(key)
			continue
		}
		sizes = append(sizes, t.formats[e.group].Layout.ImageBytes())
		recs = append(recs, t.deletion(key, 0))
	}
	if len(recs) > 0 {
		a.appendAll(recs, true)
	}
	for i, p := range recs {
		t.locks.Unlock(p.key)
		if p.err != nil {
			r.Left = p.err // the same for most blocks
			continue
		}
		r.Keys = append(r.Keys, p.key)
		t.removals.Add(t.clock.Now(), p.key, cause)
		r.Bytes += sizes[i]
	}
	return busy, pinned
}

// deletion returns a deletion of a block. The highest segment number at its time limits the
// segments that may contain the block. limit is that number of a deletion that is moved, or zero.
func (t *Tier) deletion(key block.Key, limit uint32) *pending {
	if limit == 0 {
		t.order.Lock()
		limit = t.last
		t.order.Unlock()
	}
	return &pending{record: record{key: key, kind: deleted, position: limit}}
}

// headNumber returns the number of the segment to which a appends, or zero. The caller owns a.
func (a *appender) headNumber() uint32 {
	if a.head == nil {
		return 0
	}
	return a.head.number
}

// syncDeletions makes the deletions in the segments from a number on durable, under every policy.
func (t *Tier) syncDeletions(ctx context.Context, from uint32) error {
	return t.syncSegments(ctx, func(g *segment) bool { return g.number >= from && g.deletes.Load() > 0 })
}

// syncSegments makes the records of some segments durable, under every policy.
func (t *Tier) syncSegments(ctx context.Context, some func(g *segment) bool) error {
	if err := t.syncAll(ctx); err != nil {
		return err
	}
	for _, listed := range t.segments.list() {
		if !some(listed) {
			continue
		}
		g := t.segments.acquire(listed.number)
		if g == nil {
			continue
		}
		var err error
		if t.cfg.Fsync == FsyncNever {
			err = g.file.Sync()
		} else if why := g.broken.Load(); why != nil && g.synced.Load() < g.end.Load() {
			err = fmt.Errorf("an earlier sync of segment %s failed: %w", segmentName(g.number), *why)
		}
		if err = errors.Join(err, g.release()); err != nil {
			return blockdir.WriteError(err)
		}
	}
	if t.cfg.Fsync == FsyncNever {
		return blockdir.SyncRoot(t.dir)
	}
	return nil
}

// deletion moves a deletion of the segment to the head of the log if another segment may contain
// the block. Otherwise a log whose checkpoint is lost would find the block again.
func (e *compaction) deletion(ctx context.Context, r *record) {
	t, limit := e.t, r.limit(e.v.number)
	if _, ok := t.table.get(r.key); ok || !t.mayHave(limit, e.v.number) {
		return
	}
	if t.locks.TryLock(r.key, usage.Removing) != nil {
		e.inUse++
		return
	}
	if _, ok := t.table.get(r.key); ok {
		t.locks.Unlock(r.key)
		return
	}
	e.deletions = append(e.deletions, t.deletion(r.key, limit))
	if len(e.deletions) >= removeBatch {
		e.flushDeletions(ctx)
	}
}

// flushDeletions writes the deletions that are moved, and makes them durable.
func (e *compaction) flushDeletions(ctx context.Context) {
	if len(e.deletions) == 0 {
		return
	}
	a := <-e.t.first
	defer a.release()
	from := a.headNumber()
	a.appendAll(e.deletions, true)
	for _, p := range e.deletions {
		e.t.locks.Unlock(p.key)
		if p.err != nil {
			e.failure = p.err
		}
	}
	e.deletions = e.deletions[:0]
	if err := e.t.syncDeletions(ctx, from); err != nil {
		e.failure = errors.Join(e.failure, err)
	}
}

// needsDeletions reports whether a segment has little but deletions of blocks that another segment
// may contain. Moving them would free no space.
func (t *Tier) needsDeletions(g *segment) bool {
	deletes := g.deletes.Load()
	return deletes > 0 && g.live.Load() == 0 && 4*deletes >= g.used()-page && t.mayHave(g.number-1, g.number)
}

// countDeletions counts the deletions of a segment without live blocks, if a checkpoint covered
// them when the log was opened, so that they were not read. The caller holds roundLock.
func (t *Tier) countDeletions(ctx context.Context, g *segment) {
	if g.live.Load() > 0 || g.deletes.Load() > 0 {
		return
	}
	n := int64(0)
	_, err := scan(ctx, g.file, g.number, 0, g.end.Load(), t.id, t.formats, func(h *header) error {
		if h.hasDeletions() {
			n += h.bytes
		}
		return nil
	})
	if err == nil { // emptying the segment returns the error
		g.deletes.Store(n)
	}
}

// hasDeletions reports whether a record of the group is a deletion.
func (h *header) hasDeletions() bool {
	return slices.ContainsFunc(h.records, func(r record) bool { return r.kind == deleted })
}

// limit returns the highest number of a segment with a block that the deletion, which is in segment
// number, deletes. Earlier builds recorded none.
func (r *record) limit(number uint32) uint32 {
	if r.position == 0 {
		return number + maxAppenders
	}
	return r.position
}

// mayHave reports whether a segment other than except, with a number up to limit, is in the log or
// could not be read.
func (t *Tier) mayHave(limit, except uint32) bool {
	for _, n := range t.unreadFiles {
		if n != except && n <= limit {
			return true
		}
	}
	for _, g := range t.segments.list() {
		if g.number != except && g.number <= limit {
			return true
		}
	}
	return false
}
