package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/errdefs"
)

// copyHeld dumps the first chunk of todo, as what it has to come after comes: submissions of shards, recorded work on the device. Where its copies
// go well the rest comes after nothing more; where not, another chunk is tried.
func (t *DumpTask) copyHeld() {
	for !t.met && len(t.sc.todo) > 0 {
		t.heldChunk()
	}
}

// heldChunk has some blocks of todo copied. Slots are held at the client's pleasure, so they are counted in layerSlots, all of a chunk at once,
// before the first is taken, until the task waits for nothing of the client's, or holds none. After a wait in vain all of todo fails.
func (t *DumpTask) heldChunk() {
	n := t.s.chunk
	if !t.layers {
		n = min(n, t.s.most)
	}
	want := int64(min(len(t.sc.todo), n))
	wait, cancel := t.s.waitCtx(t.ctx)
	err := t.s.layerSlots.Acquire(wait, want)
	cancel()
	if err != nil {
		t.failAll(fmt.Errorf("other layerwise dumps, or dumps behind recorded work, hold all %d slots that such may: %w: %w", t.s.held, errdefs.ErrBusy, err))
		return
	}
	if g := t.reserveCohort(int(want), true); g != nil {
		g.layered = true
		if t.layers {
			err = t.copyLayers(g)
		} else {
			err = t.copyBehind(g)
		}
		t.met = g.err == nil && err == nil && t.ctx.Err() == nil
		t.cohorts = append(t.cohorts, g)
		t.take(g) // it may be quiet, and then nothing tells of it
	}
	for !t.met && len(t.cohorts) > 0 {
		t.progress()
	}
	t.s.layerSlots.Release(want)
	if err != nil {
		t.failAll(err)
	}
}

// copyBehind copies g's blocks, whole, behind recorded work on the device.
func (t *DumpTask) copyBehind(g *cohort) error {
	g.planShards(t.s, 0, t.s.shards)
	t.submit(g, t.behind...)
	return t.awaitBehind(g)
}

// awaitBehind waits until g is quiet, which waits for recorded work on the device: for LeaseMax, since g holds slots. Then the task
// ends, and gives the slots back when the device has let go of them.
func (t *DumpTask) awaitBehind(g *cohort) error {
	late := t.s.clock.NewTimer(t.s.cfg.LeaseMax)
	defer late.Stop()
	for !g.quiet() {
		select {
		case <-g.oldest():
			g.news(&t.task, t.s.dumps, &t.s.count.dump)
		case <-t.ctx.Done():
			return nil // it is acted on where slots go to quarantine
		case <-late.Chan():
			err := fmt.Errorf("recorded work was not done in %v, slots are held for no longer: %w", t.s.cfg.LeaseMax, errdefs.ErrExpired)
			t.cancel(err)
			return err
		}
	}
	return nil
}

// copyLayers copies every shard of g's blocks as it is submitted, those together that were submitted meanwhile: they lie side by side in
// slots. The error is that of a wait which no later chunk need make.
func (t *DumpTask) copyLayers(g *cohort) error {
	var waited error
	behind, waits := slices.Clone(t.behind), len(t.behind) > 0
	for k := 0; k < t.s.shards && g.err == nil; {
		_, err := t.arrival(g, k)
		if err != nil {
			if g.err == nil {
				waited = err
			}
			g.fail(err)
			break
		}
		n := k + 1
		for n < t.s.shards && t.here(n) {
			n++
		}
		for i := k; i < n; i++ {
			behind = append(behind, t.arrivals[i].behind...)
		}
		waits = waits || len(behind) > 0
		t.planArrivals(g, t.arrivals[k:n])
		k = n
		if len(g.parts) > g.sent() { // else none of the blocks has such a shard
			t.submit(g, behind...)
			behind = behind[:0] // the stream waits, and where it breaks g fails
		}
	}
	if waited == nil && waits {
		waited = t.awaitBehind(g)
	}
	return waited
}

// here says whether the k-th submission has come, those before it having, and need not wait for anything.
func (t *DumpTask) here(k int) bool {
	if k == len(t.arrivals) {
		select {
		case sub := <-t.shardCh:
			t.arrived(sub)
		default:
			return false
		}
	}
	sub := &t.arrivals[k]
	if sub.met {
		return true
	}
	for _, d := range sub.after {
		select {
		case <-d.Done():
			if d.Err() != nil {
				return false // arrival says so
			}
		default:
			return false
		}
	}
	sub.met = true
	return true
}

// planArrivals plans the shards of submissions, neighbours together.
func (t *DumpTask) planArrivals(g *cohort, subs []submission) {
	t.sc.shards = t.sc.shards[:0]
	for i := range subs {
		t.sc.shards = append(t.sc.shards, subs[i].shard)
	}
	slices.Sort(t.sc.shards)
	for from, k := 0, 1; k <= len(t.sc.shards); k++ {
		if k == len(t.sc.shards) || t.sc.shards[k] != t.sc.shards[k-1]+1 {
			g.planShards(t.s, t.sc.shards[from], t.sc.shards[k-1]+1)
			from = k
		}
	}
}

// arrival returns the k-th submission, waiting for it and for what it has to come after: for no longer than LeaseMax each,
// since the task holds slots. Meanwhile it takes note of what g has copied: a copy that failed ends the wait.
func (t *DumpTask) arrival(g *cohort, k int) (submission, error) {
	if k == len(t.arrivals) {
		sub, err := t.nextSubmission(g)
		if err != nil {
			return submission{}, err
		}
		t.arrived(sub)
	}
	sub := &t.arrivals[k]
	if !sub.met {
		if err := t.shardMet(g, sub); err != nil {
			return submission{}, err
		}
		sub.met = true
	}
	return *sub, nil
}

// arrived notes a submission.
func (t *DumpTask) arrived(sub submission) {
	sub.after, sub.behind = t.s.dumps.SplitDeps(t.ctx, sub.after)
	t.arrivals = append(t.arrivals, sub)
}

func (t *DumpTask) nextSubmission(g *cohort) (submission, error) {
	select {
	case sub := <-t.shardCh: // even if the store is closing
		return sub, nil
	default:
	}
	sub, err := t.hold(g, t.shardCh, nil)
	if err != nil && g.err == nil {
		err = fmt.Errorf("shard number %d of %d was not submitted: %w", len(t.arrivals)+1, t.s.shards, err)
	}
	return sub, err
}

// shardMet waits for what a shard has to come after.
func (t *DumpTask) shardMet(g *cohort, sub *submission) error {
	for k, d := range sub.after {
		select {
		case <-d.Done(): // even if the store is closing
		default:
			if _, err := t.hold(g, nil, d.Done()); err != nil {
				if g.err == nil {
					err = fmt.Errorf("shard %d of %d: %w", sub.shard, t.s.shards, unmet(sub.after, k, err))
				}
				return err
			}
		}
		if err := d.Err(); err != nil {
			return fmt.Errorf("shard %d of %d: %w", sub.shard, t.s.shards, unmet(sub.after, k, err))
		}
	}
	return nil
}

// hold waits for a submission, or for a dependency to resolve, while the task holds g's slots: until LeaseMax has passed or the
// store closes.
func (t *DumpTask) hold(g *cohort, submitted <-chan submission, resolved <-chan struct{}) (submission, error) {
	start := t.s.clock.Now()
	idle := t.s.clock.NewTimer(t.s.cfg.LeaseMax)
	defer idle.Stop()
	for g.err == nil {
		select {
		case sub := <-submitted:
			return sub, nil
		case <-resolved:
			return submission{}, nil
		case <-g.oldest():
			g.news(&t.task, t.s.dumps, &t.s.count.dump)
		case <-t.ctx.Done():
			return submission{}, context.Cause(t.ctx)
		case <-t.s.closing:
			return submission{}, fmt.Errorf("store is closing, %v waited: %w", t.s.clock.Since(start), errdefs.ErrClosed)
		case <-idle.Chan():
			return submission{}, fmt.Errorf("%v waited, slots are held for no longer: %w", t.s.cfg.LeaseMax, errdefs.ErrExpired)
		}
	}
	return submission{}, g.err
}
