package file

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/internal/usage"
)

// Rounds of removing that made no room are repeated while somebody waits, after a pause that grows between these bounds.
const (
	roundPauseLeast = 5 * time.Millisecond
	roundPauseMost  = time.Second
)

// recountEvery is how often the files are counted that other processes may have added or removed, while the tier is used.
const recountEvery = time.Minute

// renewEvery is the minimum interval between renewals of a usage record.
const renewEvery = 2 * time.Second

// collector is the area's own goroutine: it counts what is there, then removes and recounts when asked to.
func (a *area) collector() {
	defer close(a.done)
	a.background(a.recount(a.ctx))
	a.begin()
	close(a.counted)
	tick := a.clock.NewTicker(recountEvery)
	defer tick.Stop()
	var pause time.Duration
	var used int64
	var later <-chan time.Time // a round that is due once renewEvery has passed
	for {
		retry := a.round()
		var again <-chan time.Time
		if (retry || a.space.starving()) && !a.cfg.ReadOnly {
			pause = min(max(2*pause, roundPauseLeast), roundPauseMost)
			again = a.clock.After(pause)
		} else {
			pause = 0
		}
		if a.cut || a.renew || a.space.outgrown() {
			if a.cut || a.clock.Since(a.recordedAt) >= renewEvery {
				a.writeRecords(false)
			}
			// Other owners may have renewed their records meanwhile: another round reads those.
			if later == nil && a.shared() {
				later = a.clock.After(renewEvery)
			}
		}
		select {
		case <-a.ctx.Done():
			return
		case <-a.kick:
		case <-again:
		case <-later:
			later = nil
		case <-tick.Chan():
			a.lookAfter()
			_, n := a.ops.Count()
			// The record must include blocks that other processes store and remove.
			if f := a.failure.Load(); n != used || *f != nil || a.cfg.SharedBound && !a.alone() {
				used = n
				a.space.missing()
			}
			a.renew = true
		}
	}
}

// begin writes this tier's first usage records. It sets the first bounds to the rest of the bound,
// by the records of the other folders.
func (a *area) begin() {
	a.writeRecords(false)
	if !a.shared() {
		return
	}
	a.background(a.look(a.ctx))
	a.others.Store(a.peaks())
	a.space.bind(a.whole.part(a.held(), a.left(), len(a.neighbours), a.space.unit))
}

// lookAfter makes directories anew that were removed or replaced while they are open.
func (a *area) lookAfter() {
	for _, d := range a.dirs {
		removed, err := d.lookAfter(a.ctx, &a.cfg)
		if removed {
			a.count.errors.Add(1)
			a.space.missing()
		}
		if err != nil && a.ctx.Err() == nil {
			a.count.errors.Add(1)
		}
	}
}

// round counts and evicts blocks if that is due. retry reports that another process is removing
// blocks, and that another round is useful.
func (a *area) round() (retry bool) {
	var errs []error
	a.recountLost()
	if _, recount, sure := a.space.due(); sure || recount && !a.alone() {
		errs = append(errs, a.recount(a.ctx))
	} else if recount {
		a.space.countedAll()
	}
	tooMuch := a.tooMuch()
	if a.shared() {
		var err error
		retry, err = a.share(a.ctx)
		// Blocks written meanwhile also displace blocks of unused folders before this tier's own.
		for tooMuch = a.tooMuch(); tooMuch && !retry && !a.yielding && err == nil && a.total() > a.whole.high; tooMuch = a.tooMuch() {
			retry, err = a.share(a.ctx)
		}
		errs = append(errs, err)
	}
	if tooMuch && !retry && !a.cfg.ReadOnly {
		n, err := a.collect(a.ctx, a.space.target())
		errs = append(errs, err)
		if a.yielding && a.others.Load() > 0 {
			a.count.yielded.Add(int64(n))
		}
	}
	if len(errs) > 0 {
		a.background(errors.Join(errs...))
	}
	if a.recordErr != nil {
		failure := errors.Join(*a.failure.Load(), a.recordErr)
		a.failure.Store(&failure)
	}
	return retry
}

func (a *area) tooMuch() bool {
	tooMuch, _, _ := a.space.due()
	return tooMuch
}

// background notes how work ended that nobody waits for; a Put that waits for room in vain reports it.
func (a *area) background(err error) {
	if err != nil && a.ctx.Err() == nil {
		a.count.errors.Add(1)
	}
	a.failure.Store(&err)
}

func (a *area) collectSoon() {
	select {
	case a.kick <- struct{}{}:
	default: // a round is due anyway
	}
}

// GC removes the coldest blocks of all directories until the tier holds at most targetBytes, or nothing more can be
// removed, and returns how many it removed. Where directories have bounds of their own each gives up as large a part of what it
// holds. Blocks that are retained or being written stay. What cannot be removed is passed over; the error then says what and why,
// and how much was removed all the same.
func (t *Tier) GC(ctx context.Context, targetBytes int64) (removed int, err error) {
	if targetBytes < 0 {
		return 0, fmt.Errorf("collect down to %d bytes: %w", targetBytes, errdefs.ErrInvalid)
	}
	if t.cfg.ReadOnly {
		return 0, fmt.Errorf("collect: %w", errReadOnly)
	}
	if err := t.enter(ctx); err != nil {
		return 0, err
	}
	defer t.leave()
	all := int64(0)
	for _, a := range t.areas {
		a.space.missing() // whoever asks wants to know
		all += a.held()
	}
	var errs []error
	for _, a := range t.areas {
		target := targetBytes
		if len(t.areas) > 1 {
			target = int64(float64(targetBytes) * float64(a.held()) / float64(max(all, 1)))
		}
		n, err := a.collect(ctx, target)
		removed, errs = removed+n, append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return removed, t.fail(fmt.Errorf("collect down to %d bytes: %w", targetBytes, err))
	}
	return removed, nil
}

// collect removes the coldest blocks until target bytes are left. What it cannot remove it passes over, counts and reports.
func (a *area) collect(ctx context.Context, target int64) (removed int, err error) {
	// Two rounds at a time would both remove what one of them should.
	select {
	case a.rounds <- struct{}{}:
		defer func() { <-a.rounds }()
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	r := round{a: a, failed: make(map[block.Key]error)}
	err = r.run(ctx, target)
	a.stuck.Store(int64(len(r.failed)))
	var errs []error
	for _, e := range r.failed {
		errs = append(errs, e)
	}
	return r.removed, errors.Join(err, r.counting, r.listing, joinFew(errs))
}

func (a *area) held() int64 {
	_, bytes := a.space.holds()
	return bytes
}

// round is one round of removing.
type round struct {
	a                 *area
	removed           int
	freed             int64               // bytes of what was removed
	counting, listing error               // what could not be looked at
	failed            map[block.Key]error // not to be tried again in this round
}

func (r *round) run(ctx context.Context, target int64) error {
	a := r.a
	if _, _, sure := a.space.due(); sure { // others are at work
		a.cold = nil
		r.counting = a.recount(ctx)
	}
	// What is written while a round runs is the next round's: this one would remove a block for each, beyond the target.
	enough := r.freed + a.held() - target
	for listed := false; ; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if r.freed >= enough || a.held() <= target {
			return nil
		}
		if len(a.cold) == 0 {
			if listed {
				return nil // all that there is was tried, and helped nothing
			}
			r.listing = r.list(ctx, target)
			enough = r.freed + a.held() - target // others' blocks may have been counted
			if listed = true; len(a.cold) == 0 {
				return nil
			}
			continue
		}
		a.cold = a.late.join(a.cold)
		c := a.cold[0]
		a.cold = a.cold[1:]
		if r.remove(&c) {
			listed = false
		}
	}
}

// remove removes a candidate, and says whether that made room, or somebody else had.
func (r *round) remove(c *candidate) bool {
	switch there, err := r.a.evict(c); {
	case err == nil && !there:
		r.removed++
		r.freed += r.a.formats.ImageBytes(c.key)
		return true
	case blockdir.Gone(err):
		return true
	case err != nil:
		r.failed[c.key] = err
	}
	return false
}

// coldMore and coldMost say how many more candidates are looked for than are needed now: the next rounds need not look then.
const (
	coldMore = 64
	coldMost = 1 << 16
)

// list finds candidates, after counting anew what others may have changed.
func (r *round) list(ctx context.Context, target int64) error {
	a := r.a
	if _, _, sure := a.space.due(); sure || !a.alone() {
		r.counting = a.recount(ctx)
	}
	held, bytes := a.space.holds()
	need := blocksOf(a.formats, bytes-target)
	if need <= 0 {
		return nil
	}
	a.late.begin()
	dirs := make([]dirfs.Dir, len(a.dirs))
	for i, d := range a.dirs {
		dirs[i] = d
	}
	cold, err := coldest(ctx, dirs, a.clock.Now(), max(need, min(need+max(coldMore, held/4), coldMost)), func(key block.Key) bool {
		pinned, w := a.locks.State(key)
		_, failed := r.failed[key]
		return !pinned && w == usage.Idle && !failed
	})
	a.cold = cold
	var until time.Time
	if len(cold) > 0 {
		until = cold[len(cold)-1].used
	}
	a.late.end(until)
	return err
}

// evict removes one block unless it came into use, or was used, since it was found cold, and says whether it is still there.
// An error that is blockdir.Gone() means that somebody else has removed it.
func (a *area) evict(c *candidate) (there bool, err error) {
	if !a.locks.TryLockRemoving(c.key) {
		return true, nil
	}
	defer a.locks.Unlock(c.key)
	d := a.dirs[c.dir]
	info, err := d.Stat(blockName(c.key))
	if blockdir.Gone(err) {
		a.space.missing()
		return false, err
	}
	if err == nil && !info.Modified.Equal(c.modified) {
		return true, nil
	}
	if err == nil {
		err = a.unname(d, c.key, func() error {
			err := d.Remove(blockName(c.key))
			if err == nil { // before the room is given to a Put that waits for it
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
