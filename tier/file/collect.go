package file

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
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

// recountEvery is the interval between recounts of files, which other processes may have added or
// removed, while the tier is in use.
const recountEvery = time.Minute

// renewEvery is the minimum interval between renewals of a usage record.
const renewEvery = 2 * time.Second

// collector is the area's goroutine. It counts the blocks, and then evicts and recounts when woken.
func (a *area) collector() {
	defer close(a.done)
	a.setFailure(a.recount(a.ctx))
	a.start()
	close(a.counted)
	tick := a.clock.NewTicker(recountEvery)
	defer tick.Stop()
	var pause time.Duration
	var used int64
	var later <-chan time.Time // fires when another round is due after renewEvery
	for {
		retry := a.round()
		var next <-chan time.Time
		if (retry || a.space.hasWaiters()) && !a.cfg.ReadOnly {
			pause = min(max(2*pause, roundPauseLeast), roundPauseMost)
			next = a.clock.After(pause)
		} else {
			pause = 0
		}
		if a.cut || a.renew || a.space.hasGrown() {
			if a.cut || a.clock.Since(a.recordedAt) >= renewEvery {
				a.writeRecords(false)
			}
			// Other owners may renew their records meanwhile: another round reads these.
			if later == nil && a.shared() {
				later = a.clock.After(renewEvery)
			}
		}
		select {
		case <-a.ctx.Done():
			return
		case <-a.wake:
		case <-next:
		case <-later:
			later = nil
		case <-tick.Chan():
			a.restoreDirs()
			_, n := a.ops.Count()
			// The record must include the effects of other processes that store and remove blocks.
			if f := a.failure.Load(); n != used || *f != nil || a.cfg.SharedBound && !a.alone() {
				used = n
				a.space.markStale()
			}
			a.renew = true
		}
	}
}

// start writes this tier's first usage records. It limits the tier to the part of the bound that
// the records of the other folders leave.
func (a *area) start() {
	a.writeRecords(false)
	if !a.shared() {
		return
	}
	a.setFailure(a.readNeighbours(a.ctx))
	a.others.Store(a.neighbourPeaks())
	a.space.setLimits(a.whole.part(a.storedBytes(), a.neighbourBytes(), len(a.neighbours), a.space.unit))
}

// restoreDirs restores the tier's directories that were removed or replaced.
func (a *area) restoreDirs() {
	for _, d := range a.dirs {
		removed, err := d.restore(a.ctx, &a.cfg)
		if removed {
			a.count.errors.Add(1)
			a.space.markStale()
		}
		if err != nil && a.ctx.Err() == nil {
			a.count.errors.Add(1)
		}
	}
}

// round counts and evicts blocks if that is due. retry is set if another process is removing
// blocks, so that another round is useful.
func (a *area) round() (retry bool) {
	var errs []error
	a.recountLost()
	if _, recount, sure := a.space.due(); sure || recount && !a.alone() {
		errs = append(errs, a.recount(a.ctx))
	} else if recount {
		a.space.beginRecount()
	}
	tooMuch := a.aboveHigh()
	if a.shared() {
		var err error
		retry, err = a.share(a.ctx)
		// Blocks that were written meanwhile also displace blocks of unused folders before this
		// tier's own.
		for tooMuch = a.aboveHigh(); tooMuch && !retry && !a.yielding && err == nil && a.total() > a.whole.high; tooMuch = a.aboveHigh() {
			retry, err = a.share(a.ctx)
		}
		errs = append(errs, err)
	}
	if tooMuch && !retry && !a.cfg.ReadOnly {
		n, err := a.collect(a.ctx, a.space.target(), a.cause())
		errs = append(errs, err)
		if a.yielding && a.others.Load() > 0 {
			a.count.yielded.Add(int64(n))
		}
	}
	if len(errs) > 0 {
		a.setFailure(errors.Join(errs...))
	}
	if a.recordErr != nil {
		failure := errors.Join(*a.failure.Load(), a.recordErr)
		a.failure.Store(&failure)
	}
	return retry
}

func (a *area) aboveHigh() bool {
	tooMuch, _, _ := a.space.due()
	return tooMuch
}

// setFailure records the result of background work. Put returns it if it waits for space without
// success.
func (a *area) setFailure(err error) {
	if err != nil && a.ctx.Err() == nil {
		a.count.errors.Add(1)
	}
	a.failure.Store(&err)
}

func (a *area) collectSoon() {
	select {
	case a.wake <- struct{}{}:
	default: // a round is already pending
	}
}

// GC evicts the coldest blocks of all directories until at most targetBytes are stored. Directories
// with their own bounds are reduced in proportion. Retained and pinned blocks, and blocks that are
// being written, stay. GC skips files that it cannot remove. It returns the number of evicted
// blocks, and the errors of the skipped files.
func (t *Tier) GC(ctx context.Context, targetBytes int64) (removed int, err error) {
	if targetBytes < 0 {
		return 0, fmt.Errorf("collect down to %d bytes: %w", targetBytes, errdefs.ErrInvalid)
	}
	if t.cfg.ReadOnly {
		return 0, fmt.Errorf("collect: %w", errReadOnly)
	}
	if err := t.beginOp(ctx); err != nil {
		return 0, err
	}
	defer t.endOp()
	all := int64(0)
	for _, a := range t.areas {
		a.space.markStale() // GC counts the files again
		all += a.storedBytes()
	}
	var errs []error
	for _, a := range t.areas {
		target := targetBytes
		if len(t.areas) > 1 {
			target = int64(float64(targetBytes) * float64(a.storedBytes()) / float64(max(all, 1)))
		}
		n, err := a.collect(ctx, target, tier.CauseGC)
		removed, errs = removed+n, append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return removed, t.fail(fmt.Errorf("collect down to %d bytes: %w", targetBytes, err))
	}
	return removed, nil
}

// cause returns the cause of evictions by the collector.
func (a *area) cause() tier.Cause {
	switch {
	case a.space.full() != nil:
		return tier.CauseFull
	case a.yielding && a.others.Load() > 0:
		return tier.CauseShare
	}
	return tier.CauseBound
}

// collect evicts the coldest blocks until target bytes are left, and records the cause. It skips,
// counts and reports blocks that it cannot remove.
func (a *area) collect(ctx context.Context, target int64, cause tier.Cause) (removed int, err error) {
	// Two concurrent rounds would evict too much.
	select {
	case a.roundLock <- struct{}{}:
		defer func() { <-a.roundLock }()
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	r := round{a: a, cause: cause, failed: make(map[block.Key]error)}
	err = r.run(ctx, target)
	for _, d := range a.dirs {
		d.removals.Flush()
	}
	a.stuck.Store(int64(len(r.failed)))
	var errs []error
	for _, e := range r.failed {
		errs = append(errs, e)
	}
	return r.removed, errors.Join(err, r.counting, r.listing, joinFew(errs))
}

func (a *area) storedBytes() int64 {
	_, bytes := a.space.stored()
	return bytes
}

// round is the state of one eviction round.
type round struct {
	a                 *area
	cause             tier.Cause
	removed           int
	freed             int64               // bytes of the removed blocks
	counting, listing error               // errors of counting and of listing files
	failed            map[block.Key]error // blocks that are not tried again in this round
}

func (r *round) run(ctx context.Context, target int64) error {
	a := r.a
	if _, _, sure := a.space.due(); sure { // other processes remove files
		a.cold = nil
		r.counting = a.recount(ctx)
	}
	// Blocks that are written during the round do not count. Otherwise the round would evict a
	// block for each of them, beyond the target.
	enough := r.freed + a.storedBytes() - target
	for listed := false; ; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if r.freed >= enough || a.storedBytes() <= target {
			return nil
		}
		if len(a.cold) == 0 {
			if listed {
				return nil // all candidates were tried
			}
			r.listing = r.list(ctx, target)
			enough = r.freed + a.storedBytes() - target // blocks of other processes may have been counted
			if listed = true; len(a.cold) == 0 {
				return nil
			}
			continue
		}
		a.cold = a.recentCold.join(a.cold)
		c := a.cold[0]
		a.cold = a.cold[1:]
		if r.remove(&c) {
			listed = false
		}
	}
}

// remove evicts a candidate. It returns true if this freed space, also if another process has
// already removed the file.
func (r *round) remove(c *candidate) bool {
	switch there, err := r.a.evict(c); {
	case err == nil && !there:
		r.removed++
		r.freed += r.a.formats.ImageBytes(c.key)
		r.a.dirs[c.dir].removals.Add(r.a.clock.Now(), c.key, r.cause)
		return true
	case blockdir.Gone(err):
		return true
	case err != nil:
		r.failed[c.key] = err
	}
	return false
}

// A search returns more candidates than needed, so that the next rounds need no search: at least
// coldMore, at most coldMost.
const (
	coldMore = 64
	coldMost = 1 << 16
)

// list searches for candidates. Before that it recounts files that other processes may have
// changed.
func (r *round) list(ctx context.Context, target int64) error {
	a := r.a
	if _, _, sure := a.space.due(); sure || !a.alone() {
		r.counting = a.recount(ctx)
	}
	stored, bytes := a.space.stored()
	need := blocksOf(a.formats, bytes-target)
	if need <= 0 {
		return nil
	}
	a.recentCold.begin()
	dirs := make([]dirfs.Dir, len(a.dirs))
	for i, d := range a.dirs {
		dirs[i] = d
		a.notePins(d)
	}
	cold, err := coldest(ctx, dirs, a.clock.Now(), max(need, min(need+max(coldMore, stored/4), coldMost)), func(key block.Key) bool {
		pinned, w := a.locks.State(key)
		_, failed := r.failed[key]
		return !pinned && w == usage.Idle && !failed
	})
	a.cold = cold
	var until time.Time
	if len(cold) > 0 {
		until = cold[len(cold)-1].used
	}
	a.recentCold.end(until)
	return err
}

// evict removes a block unless it is in use or was used since the search. It reports whether the
// file still exists. If another process has already removed it, the error satisfies blockdir.Gone.
func (a *area) evict(c *candidate) (there bool, err error) {
	d := a.dirs[c.dir]
	if err := a.refreshPins(d); err != nil {
		return true, fmt.Errorf("remove cold block %s: %w", c.key, err)
	}
	if !a.locks.TryLockRemoving(c.key) { // it is in use or pinned
		return true, nil
	}
	defer a.locks.Unlock(c.key)
	info, err := d.Stat(blockName(c.key))
	if blockdir.Gone(err) {
		a.space.markStale()
		return false, err
	}
	if err == nil && !info.Modified.Equal(c.modified) {
		return true, nil
	}
	if err == nil {
		err = a.removeName(d, c.key, func() error {
			err := d.Remove(blockName(c.key))
			if err == nil { // count the eviction before a waiting Put gets the space
				a.count.evictions.Add(1)
			}
			return err
		})
	}
	if err != nil && !blockdir.Gone(err) {
		return true, fmt.Errorf("remove cold block %s: %w", c.key, blockdir.WriteError(err))
	}
	return false, err
}
