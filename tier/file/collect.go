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

// collector is the tier's own goroutine: it counts what is there, then removes and recounts when asked to.
func (t *Tier) collector() {
	defer close(t.done)
	t.background(t.recount(t.ctx))
	close(t.counted)
	tick := t.clock.NewTicker(recountEvery)
	defer tick.Stop()
	var pause time.Duration
	var used int64
	for {
		t.round()
		var again <-chan time.Time
		if t.space.starving() && !t.cfg.ReadOnly {
			pause = min(max(2*pause, roundPauseLeast), roundPauseMost)
			again = t.clock.After(pause)
		} else {
			pause = 0
		}
		select {
		case <-t.ctx.Done():
			return
		case <-t.kick:
		case <-again:
		case <-tick.Chan():
			_, n := t.gate.Count()
			if f := t.failure.Load(); n != used || *f != nil {
				used = n
				t.space.missing()
			}
		}
	}
}

// round recounts and removes what is due.
func (t *Tier) round() {
	tooMuch, recount, sure := t.space.due()
	if sure || recount && !t.alone() {
		t.background(t.recount(t.ctx))
		tooMuch, _, _ = t.space.due()
	} else if recount {
		t.space.countedAll()
	}
	if tooMuch && !t.cfg.ReadOnly {
		_, err := t.collect(t.ctx, t.space.target())
		t.background(err)
	}
}

// background notes how work ended that nobody waits for; a Put that waits for room in vain reports it.
func (t *Tier) background(err error) {
	if err != nil && t.ctx.Err() == nil {
		t.count.errors.Add(1)
	}
	t.failure.Store(&err)
}

func (t *Tier) collectSoon() {
	select {
	case t.kick <- struct{}{}:
	default: // a round is due anyway
	}
}

// GC removes the coldest blocks of all directories until the tier holds at most targetBytes, or nothing more can be
// removed, and returns how many it removed. Blocks that are retained or being written stay. What cannot be removed is passed
// over; the error then says what and why, and how much was removed all the same.
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
	t.space.missing() // whoever asks wants to know
	removed, err = t.collect(ctx, targetBytes)
	if err != nil {
		return removed, t.fail(fmt.Errorf("collect down to %d bytes: %w", targetBytes, err))
	}
	return removed, nil
}

// collect removes the coldest blocks until target bytes are left. What it cannot remove it passes over, counts and reports.
func (t *Tier) collect(ctx context.Context, target int64) (removed int, err error) {
	// Two rounds at a time would both remove what one of them should.
	select {
	case t.rounds <- struct{}{}:
		defer func() { <-t.rounds }()
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	r := round{t: t, failed: make(map[block.Key]error)}
	err = r.run(ctx, target)
	t.count.stuck.Store(int64(len(r.failed)))
	var errs []error
	for _, e := range r.failed {
		errs = append(errs, e)
	}
	return r.removed, errors.Join(err, r.counting, r.listing, joinFew(errs))
}

func (t *Tier) held() int64 {
	_, bytes := t.space.holds()
	return bytes
}

// round is one round of removing.
type round struct {
	t                 *Tier
	removed           int
	freed             int64               // bytes of what was removed
	counting, listing error               // what could not be looked at
	failed            map[block.Key]error // not to be tried again in this round
}

func (r *round) run(ctx context.Context, target int64) error {
	t := r.t
	if _, _, sure := t.space.due(); sure { // others are at work
		t.cold = nil
		r.counting = t.recount(ctx)
	}
	// What is written while a round runs is the next round's: this one would remove a block for each, beyond the target.
	enough := r.freed + t.held() - target
	for listed := false; ; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if r.freed >= enough || t.held() <= target {
			return nil
		}
		if len(t.cold) == 0 {
			if listed {
				return nil // all that there is was tried, and helped nothing
			}
			r.listing = r.list(ctx, target)
			enough = r.freed + t.held() - target // others' blocks may have been counted
			if listed = true; len(t.cold) == 0 {
				return nil
			}
			continue
		}
		c := t.cold[0]
		t.cold = t.cold[1:]
		if r.remove(&c) {
			listed = false
		}
	}
}

// remove removes a candidate, and says whether that made room, or somebody else had.
func (r *round) remove(c *candidate) bool {
	switch there, err := r.t.evict(c); {
	case err == nil && !there:
		r.removed++
		r.freed += r.t.formats.ImageBytes(c.key)
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
	t := r.t
	if _, _, sure := t.space.due(); sure || !t.alone() {
		r.counting = t.recount(ctx)
	}
	held, bytes := t.space.holds()
	need := blocksOf(t.formats, bytes-target)
	if need <= 0 {
		return nil
	}
	dirs := make([]dirfs.Dir, len(t.dirs))
	for i, d := range t.dirs {
		dirs[i] = d
	}
	cold, err := coldest(ctx, dirs, max(need, min(need+max(coldMore, held/4), coldMost)), func(key block.Key) bool {
		pinned, w := t.owners.Look(key)
		_, failed := r.failed[key]
		return !pinned && w == usage.Idle && !failed
	})
	t.cold = cold
	return err
}

// evict removes one block unless it came into use, or was used, since it was found cold, and says whether it is still there.
// An error that is blockdir.Gone() means that somebody else has removed it.
func (t *Tier) evict(c *candidate) (there bool, err error) {
	if !t.owners.TryOwn(c.key) {
		return true, nil
	}
	defer t.owners.Disown(c.key)
	d := t.dirs[c.dir]
	info, err := d.Stat(blockName(c.key))
	if blockdir.Gone(err) {
		t.space.missing()
		return false, err
	}
	if err == nil && !info.Modified.Equal(c.modified) {
		return true, nil
	}
	if err == nil {
		err = t.unname(d, c.key, func() error {
			err := d.Remove(blockName(c.key))
			if err == nil { // before the room is given to a Put that waits for it
				t.count.evictions.Add(1)
			}
			return err
		})
	}
	if err != nil && !blockdir.Gone(err) {
		return true, fmt.Errorf("remove cold block %s: %w", c.key, blockdir.WriteError(err))
	}
	return false, err
}
