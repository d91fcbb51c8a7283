package log

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/internal/usage"
)

// Rounds that free no space are repeated while writes wait. The interval doubles from
// roundPauseLeast to roundPauseMost.
const (
	roundPauseLeast = 5 * time.Millisecond
	roundPauseMost  = time.Second
)

// collector is the tier's background goroutine. It empties segments and writes checkpoints.
func (t *Tier) collector() {
	defer t.background.Done()
	var pause time.Duration
	for {
		t.setFailure(t.round())
		var retry <-chan time.Time
		if pause = min(max(2*pause, roundPauseLeast), roundPauseMost); t.space.waiting() > 0 {
			retry = t.clock.After(pause)
		} else {
			pause = 0
		}
		select {
		case <-t.ctx.Done():
			return
		case <-t.wake:
		case <-retry:
		}
	}
}

func (t *Tier) collectSoon() {
	select {
	case t.wake <- struct{}{}:
	default: // a round is already pending
	}
}

// round does all pending work.
func (t *Tier) round() error {
	var errs []error
	if t.checkpointDue() {
		errs = append(errs, t.checkpoint())
	}
	_, err := t.collect(t.ctx, t.space.excess, sweep{keep: true, paced: true, cause: t.space.cause()})
	_, gerr := t.collect(t.ctx, t.garbage, sweep{all: true, paced: true, cause: tier.CauseBound})
	return errors.Join(append(errs, err, gerr)...)
}

// garbage returns the total bytes of the wasted segments.
func (t *Tier) garbage() (n int64) {
	for _, g := range t.segments.list() {
		if t.wasted(g) {
			n += g.used()
		}
	}
	return n
}

// wasted reports whether less than a quarter of a segment consists of live blocks.
func (t *Tier) wasted(g *segment) bool {
	return g.sealed.Load() && !g.unread && g.live.Load() < g.used()/4 && !t.needsDeletions(g)
}

// GC empties segments, those with the least recently used blocks first, until at most targetBytes
// are left. It moves retained and pinned blocks and evicts all others. It returns the number of
// evicted blocks.
func (t *Tier) GC(ctx context.Context, targetBytes int64) (removed int, err error) {
	return t.gc(ctx, targetBytes, func(int64) {})
}

// gc is GC. It calls report before each segment with the bytes in use.
func (t *Tier) gc(ctx context.Context, targetBytes int64, report func(used int64)) (removed int, err error) {
	if targetBytes < 0 {
		return 0, fmt.Errorf("collect down to %d bytes: %w", targetBytes, errdefs.ErrInvalid)
	}
	if t.cfg.ReadOnly {
		return 0, fmt.Errorf("collect: %w", errReadOnly)
	}
	if err := t.beginOp(ctx); err != nil {
		return 0, err
	}
	defer t.ops.EndOp()
	err = t.sealAll()
	excess := func() int64 {
		used := t.space.usedBytes()
		report(used)
		return used - targetBytes
	}
	removed, cerr := t.collect(ctx, excess, sweep{cause: tier.CauseGC})
	if err = errors.Join(err, cerr); err != nil {
		return removed, t.fail(fmt.Errorf("collect down to %d bytes: %w", targetBytes, err))
	}
	return removed, nil
}

// sweep selects the blocks that are moved when segments are emptied, in addition to retained and
// pinned ones.
// Other blocks are evicted.
type sweep struct {
	keep  bool // keep some blocks with a high rank: see keepFrom
	all   bool // keep all blocks
	paced bool // move slowly while no write waits for space
	cause tier.Cause
}

// collect empties segments while excess is positive. It skips, counts and reports segments that it
// cannot empty.
func (t *Tier) collect(ctx context.Context, excess func() int64, s sweep) (removed int, err error) {
	select {
	case t.roundLock <- struct{}{}:
		defer func() { <-t.roundLock }()
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	t.order.Lock()
	last := t.last // stop at the current end of the log: moving blocks twice might not end if all are retained
	t.order.Unlock()
	failed := make(map[uint32]bool)
	var errs []error
	for excess() > 0 && ctx.Err() == nil {
		v := t.victim(failed, s, last)
		if v == nil {
			break
		}
		if t.countDeletions(ctx, v); t.needsDeletions(v) {
			continue // victim skips it from now on
		}
		e := compaction{t: t, v: v, sweep: s}
		long, err := e.run(ctx, excess())
		removed += e.evicted
		if err != nil {
			failed[v.number] = true
			if !errors.Is(err, errdefs.ErrBusy) && len(errs) < 4 {
				errs = append(errs, fmt.Errorf("empty segment %s: %w", segmentName(v.number), err))
			}
			if long && !errors.Is(err, errdefs.ErrBusy) {
				break // otherwise all newer segments might be removed instead
			}
		}
	}
	t.removals.Flush()
	t.count.stuck.Store(int64(len(failed)))
	if ctx.Err() != nil {
		errs = append(errs, context.Cause(ctx))
	}
	return removed, errors.Join(errs...)
}

// compaction is the state of emptying one segment.
type compaction struct {
	sweep
	t         *Tier
	v         *segment
	least     int64 // remaining bytes that may be moved
	budget    int64 // bytes that may still be moved
	batch     []*pending
	arenaUsed int         // used bytes of moveArena
	inUse     int         // number of blocks in use, which stay
	copied    []block.Key // blocks found elsewhere that may not be durable there yet
	deletions []*pending  // deletions to be moved, whose keys are locked
	evicted   int
	failure   error
}

// run frees space. excess is the number of bytes to free. Of a long segment it evicts only as many
// blocks as necessary. It removes any other segment. It returns ErrBusy if some blocks are in use.
func (e *compaction) run(ctx context.Context, excess int64) (long bool, err error) {
	if e.keep {
		if long, err = e.isLong(excess); err != nil {
			return long, err
		}
		if long {
			return true, e.punch(ctx, excess)
		}
		if err := e.keepFrom(ctx); err != nil {
			return false, err
		}
	}
	return false, e.empty(ctx)
}

// empty moves or evicts every block of the segment, moves its deletions, and removes the segment.
func (e *compaction) empty(ctx context.Context) error {
	t, v := e.t, e.v
	_, err := scan(ctx, v.file, v.number, 0, v.end.Load(), t.id, t.formats, func(h *header) error {
		for i := range h.records {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			switch r := &h.records[i]; {
			case r.kind == deleted:
				e.deletion(ctx, r)
			case !r.foreign():
				e.block(ctx, r, h.place(r))
			}
		}
		return nil
	})
	e.flush(ctx)
	e.flushDeletions(ctx)
	if err = errors.Join(err, e.failure); err != nil {
		return err
	}
	if e.inUse > 0 {
		return errdefs.ErrBusy
	}
	if v.live.Load() > 0 {
		// The header of their group is damaged, so the blocks cannot be moved.
		for _, lost := range t.table.removeAll(func(x entry) bool { return x.segment == v.number && !t.inUse(x.key) }) {
			t.uncount(lost)
			t.count.evictions.Add(1)
			t.removals.Add(t.clock.Now(), lost.key, tier.CauseDamage)
			e.evicted++
		}
		if v.live.Load() > 0 {
			return errdefs.ErrBusy
		}
	}
	if err := e.secure(ctx); err != nil {
		return err
	}
	return t.removeSegment(v)
}

// inUse reports whether a block is retained or pinned.
func (t *Tier) inUse(key block.Key) bool {
	pinned, _ := t.locks.State(key)
	return pinned
}

// secure makes the new copies of the segment's blocks durable. Before that, only the old copies may
// be durable.
func (e *compaction) secure(ctx context.Context) error {
	if len(e.copied) == 0 {
		return nil
	}
	if err := e.t.syncAll(ctx); err != nil {
		return err
	}
	for _, key := range e.copied {
		if now, ok := e.t.table.get(key); ok && !e.t.safe(now) {
			return errdefs.ErrBusy // a sync failed: the next compaction moves the block again
		}
	}
	return nil
}

// removeSegment removes a segment without live blocks and needed deletions.
func (t *Tier) removeSegment(v *segment) error {
	t.forgetDirect(v)
	if err := blockdir.Remove(t.dir, segmentName(v.number)); err != nil {
		return blockdir.WriteError(err)
	}
	err := t.segments.remove(v)
	t.forgetDirect(v) // a reader may have opened the segment meanwhile
	t.space.add(-v.used())
	return err
}

// block moves or evicts a block of the segment if the index refers to it here. If the index refers
// to a copy that may never become durable, block moves the block again.
func (e *compaction) block(ctx context.Context, r *record, at place) {
	t := e.t
	have, ok := t.table.get(r.key)
	if !ok || have.place != at && (have.segment == at.segment || t.safe(have)) {
		return
	}
	if have.place != at {
		if t.durable(have) {
			e.copied = append(e.copied, have.key)
		} else {
			e.move(ctx, r, have, at)
		}
		return
	}
	n := storedBytes(t.formats[have.group])
	pinned, _ := t.locks.State(r.key)
	keep := pinned || e.all
	if !keep && e.budget >= n && rank64(t.uses.Load(), have.rank) >= e.least {
		e.budget -= n
		keep = true
	}
	if pinned {
		t.raise(r.key, t.uses.Load()) // do not move the block again soon
	}
	if keep {
		e.move(ctx, r, have, at)
		return
	}
	if !t.locks.TryLockRemoving(r.key) {
		e.inUse++ // the block is in use by now
		return
	}
	e.evict(have)
	t.locks.Unlock(r.key)
}

// evict removes a block from the index. The caller has locked its key.
func (e *compaction) evict(have entry) {
	if was, ok := e.t.table.remove(have.key, func(now entry) bool { return now.place == have.place }); ok {
		e.t.uncount(was)
		e.t.count.evictions.Add(1)
		e.t.removals.Add(e.t.clock.Now(), have.key, e.cause)
		e.evicted++
	}
}

// move reads the segment's copy of a block into the batch. The index refers to the block at have.
func (e *compaction) move(ctx context.Context, r *record, have entry, at place) {
	t, key := e.t, r.key
	image := int(t.formats[have.group].Layout.ImageBytes())
	if e.arenaUsed+image > len(t.moveArena) {
		e.flush(ctx)
	}
	if t.moveArena == nil {
		t.moveArena = make([]byte, groupBytes+int(t.formats.MaxImageBytes()))
	}
	if t.locks.TryLock(key, usage.Writing) != nil {
		e.inUse++
		return
	}
	b := t.moveArena[e.arenaUsed : e.arenaUsed+image]
	p := &pending{from: have.place}
	now, ok := t.table.get(have.key)
	err := errdefs.ErrNotFound
	if ok && now.place == have.place {
		now.place = at
		err = t.read(ctx, e.v, now, key, b, true)
	}
	if err == nil {
		if err = t.makePending(p, key, b); err == nil {
			p.position = r.position
			e.arenaUsed += image
			e.batch = append(e.batch, p)
			if e.arenaUsed >= groupBytes {
				e.flush(ctx)
			}
			return
		}
	}
	switch {
	case errors.Is(err, errdefs.ErrNotFound):
	case errors.Is(err, errdefs.ErrCorrupt):
		t.count.corrupt.Add(1)
		t.setAsideOwned(ctx, key, now, b)
	default: // the block may be whole
		e.failure = errors.Join(e.failure, err)
	}
	t.locks.Unlock(key)
}

// flush writes the batch. Blocks for which there is no space are evicted, unless they are retained.
func (e *compaction) flush(ctx context.Context) {
	if len(e.batch) == 0 {
		return
	}
	t := e.t
	a := <-t.first
	for rest := e.batch; len(rest) > 0; {
		n := countFitting(t.formats, rest, t.cfg.groupBytes)
		a.appendAll(rest[:n], true)
		rest = rest[n:]
	}
	a.release()
	bytes := int64(0)
	for _, p := range e.batch {
		pinned, _ := t.locks.State(p.key)
		noSpace := errors.Is(p.err, errBoundFull) || errors.Is(p.err, errdefs.ErrNoSpace)
		switch {
		case p.err == nil:
			e.copied = append(e.copied, p.key)
			bytes += int64(len(p.data))
		case noSpace && !pinned && !e.all:
			if have, ok := t.table.get(p.key); ok && have.place == p.from {
				e.evict(have)
			}
		case noSpace:
			e.inUse++
		default:
			e.failure = errors.Join(e.failure, p.err)
		}
		t.locks.Unlock(p.key)
	}
	e.batch, e.arenaUsed = e.batch[:0], 0
	t.credit.Add(-bytes)
	if e.paced {
		t.pace(ctx, time.Duration(float64(bytes)/float64(t.cfg.MoveBytesPerSecond)*float64(time.Second)))
	}
}

// pace waits for d, or until a write waits for space.
func (t *Tier) pace(ctx context.Context, d time.Duration) {
	select {
	case <-t.clock.After(d):
	case <-t.space.demanded():
	case <-ctx.Done():
	}
}
