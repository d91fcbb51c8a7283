package log

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// A segment that was created under a higher bound may exceed the space of the present bound.
// Emptying it would evict blocks that fit. Therefore only its oldest groups are evicted and
// replaced by holes. This needs no free space, because the other groups stay in place.

// longSegments is the factor from which a segment is longer than a new one because of a higher
// bound.
const longSegments = 2

// isLong reports whether the segment is at least longSegments times as long as a new one, has more
// than excess bytes, and supports holes.
func (e *compaction) isLong(excess int64) (bool, error) {
	size := e.v.used()
	if size < longSegments*e.t.cfg.SegmentBytes || excess >= size {
		return false, nil
	}
	err := punchHole(e.v.file, e.v.size.Load(), page) // a hole after the end has no effect
	if errors.Is(err, errdefs.ErrNotSupported) {
		return false, nil
	}
	return true, blockdir.WriteError(err)
}

// oldGroup is a group that may be evicted.
type oldGroup struct {
	off, bytes int64
	newest     int64 // highest rank of its blocks
}

// punch evicts the groups with the least recently used blocks, until it has freed excess bytes. It
// returns ErrBusy if it could evict none.
func (e *compaction) punch(ctx context.Context, excess int64) error {
	t, v := e.t, e.v
	if err := t.syncAll(ctx); err != nil { // blocks may have newer copies
		return err
	}
	groups, err := e.oldGroups(ctx)
	if err != nil {
		return err
	}
	var evicted []oldGroup
	for _, g := range groups {
		if excess <= 0 {
			break
		}
		switch ok, err := e.evictGroup(ctx, g.off); {
		case err != nil:
			return err
		case ok:
			evicted = append(evicted, g)
			excess -= g.bytes
		}
	}
	if len(evicted) == 0 {
		return errdefs.ErrBusy
	}
	if err := t.forgetEvicted(); err != nil {
		return err
	}
	for _, g := range evicted {
		if err := punchHole(v.file, g.off, g.bytes); err != nil {
			return blockdir.WriteError(err)
		}
		v.holes.Add(g.bytes)
		t.space.add(-g.bytes)
	}
	return nil
}

// oldGroups returns the groups of the segment, oldest first. It omits groups with deletions, and
// groups with a block whose current copy is elsewhere and not durable.
func (e *compaction) oldGroups(ctx context.Context) (groups []oldGroup, err error) {
	t, v := e.t, e.v
	now := t.uses.Load()
	_, err = scan(ctx, v.file, v.number, 0, v.end.Load(), t.id, t.formats, func(h *header) error {
		g := oldGroup{h.at.off, h.groupBytes, math.MinInt64}
		for i := range h.records {
			r := &h.records[i]
			have, ok := t.table.get(r.key)
			switch {
			case r.kind == deleted:
				return context.Cause(ctx)
			case ok && have.place == h.place(r):
				g.newest = max(g.newest, rank64(now, have.rank))
			case ok && !t.safe(have):
				return context.Cause(ctx)
			}
		}
		if len(h.records) > 0 {
			groups = append(groups, g)
		}
		return context.Cause(ctx)
	})
	slices.SortStableFunc(groups, func(a, b oldGroup) int { return cmp.Compare(a.newest, b.newest) })
	return groups, err
}

// evictGroup evicts the blocks of a group. If a block is in use, it returns false and evicts none.
func (e *compaction) evictGroup(ctx context.Context, off int64) (ok bool, err error) {
	t, v := e.t, e.v
	h, err := readHeader(ctx, v.file, position{uint64(v.number), off}, t.id, t.formats)
	if err != nil {
		return false, err
	}
	var owned []entry
	ok = true
	for i := range h.records {
		r := &h.records[i]
		if have, there := t.table.get(r.key); there && have.place == h.place(r) {
			if ok = t.locks.TryLockRemoving(r.key); !ok {
				break
			}
			owned = append(owned, have)
		}
	}
	for _, have := range owned {
		if ok {
			e.evict(have)
		}
		t.locks.Unlock(have.key)
	}
	return ok, nil
}

// forgetEvicted writes a checkpoint without the evicted blocks. If the disk has no space for it, it
// removes the old checkpoint, so that opening reads the blocks from the segments.
func (t *Tier) forgetEvicted() error {
	err := t.checkpointInRound()
	if !errors.Is(err, errdefs.ErrNoSpace) {
		return err
	}
	if err := blockdir.Remove(t.dir, indexName); err != nil {
		return blockdir.WriteError(err)
	}
	clear(t.covered)
	t.written.Store(math.MaxInt64 / 2) // keeps a checkpoint pending until one can be written
	t.collectSoon()
	return blockdir.SyncRoot(t.dir)
}

// inHole reports whether a hole begins at the group of a block, because another process has evicted
// it.
func inHole(g *segment, e entry) bool { return skipHole(g.file, e.header(), e.off()) > e.header() }
