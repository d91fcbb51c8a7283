package store

import (
	"context"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
)

// copyLayers dumps todo shard by shard, in the order in which they are submitted.
func (t *DumpTask) copyLayers() {
	for len(t.sc.todo) > 0 {
		t.heldChunk(t.s.chunk, t.copyChunk)
	}
}

// copyBehind dumps a chunk of todo that waits on the device for recorded work, and another where that failed: once one was
// copied well, the work is done.
func (t *DumpTask) copyBehind() {
	for done := len(t.behind) == 0; !done && len(t.sc.todo) > 0; {
		t.heldChunk(min(t.s.group, t.s.chunk), func(g *group) error {
			t.submit(g, 0, -1, t.behind...)
			err := t.awaitBehind(g)
			done = g.err == nil && err == nil
			t.complete(g)
			return err
		})
	}
}

// heldChunk has up to n blocks of todo copied. Slots are held at the client's pleasure, so they are counted in layerSlots, all of
// a chunk at once, before the first is taken. After an error of run all of todo fails.
func (t *DumpTask) heldChunk(n int, run func(*group) error) {
	want := int64(min(len(t.sc.todo), n))
	wait, cancel := t.s.waitCtx(t.ctx)
	err := t.s.layerSlots.Acquire(wait, want)
	cancel()
	if err != nil {
		t.failAll(fmt.Errorf("other layerwise dumps, or dumps behind recorded work, hold all %d slots that such may: %w: %w", t.s.layers, errdefs.ErrBusy, err))
		return
	}
	if g := t.reserveGroup(int(want), true); g != nil {
		err = run(g)
	}
	t.s.layerSlots.Release(want)
	if err != nil {
		t.failAll(err)
	}
}

// awaitBehind waits until g is quiet, which waits for recorded work on the device: for LeaseMax, since g holds slots. Then the task
// ends, and gives the slots back when the device has let go of them.
func (t *DumpTask) awaitBehind(g *group) error {
	late := t.s.clock.NewTimer(t.s.cfg.LeaseMax)
	defer late.Stop()
	for !g.quiet() {
		select {
		case <-g.oldest().Done():
			t.land(g)
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

// copyChunk copies every shard of g's blocks as it is submitted. The error is that of a wait which no later chunk need make.
func (t *DumpTask) copyChunk(g *group) error {
	var waited error
	behind, waits := t.behind, len(t.behind) > 0
	for k := range t.s.shards {
		sub, err := t.arrival(g, k)
		if err != nil {
			if g.err == nil {
				waited = err
			}
			g.fail(err)
			break
		}
		waits = waits || len(sub.behind) > 0
		t.submit(g, k, sub.shard, append(behind[:len(behind):len(behind)], sub.behind...)...)
		if g.err != nil {
			break
		}
		behind = nil // the stream waits, and where it breaks g fails
	}
	if waited == nil && waits {
		waited = t.awaitBehind(g)
	}
	t.complete(g)
	return waited
}

// arrival returns the k-th submission, waiting for it and for what it has to come after: for no longer than LeaseMax each,
// since the task holds slots. Meanwhile it takes note of what g has copied: a copy that failed ends the wait.
func (t *DumpTask) arrival(g *group, k int) (submission, error) {
	if k == len(t.arrivals) {
		sub, err := t.nextSubmission(g)
		if err != nil {
			return submission{}, err
		}
		sub.after, sub.behind = t.s.dumps.split(t.ctx, sub.after)
		t.arrivals = append(t.arrivals, sub)
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

func (t *DumpTask) nextSubmission(g *group) (submission, error) {
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
func (t *DumpTask) shardMet(g *group, sub *submission) error {
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
func (t *DumpTask) hold(g *group, submitted <-chan submission, resolved <-chan struct{}) (submission, error) {
	start := t.s.clock.Now()
	idle := t.s.clock.NewTimer(t.s.cfg.LeaseMax)
	defer idle.Stop()
	for g.err == nil {
		var landed <-chan struct{}
		if !g.quiet() {
			landed = g.oldest().Done()
		}
		select {
		case sub := <-submitted:
			return sub, nil
		case <-resolved:
			return submission{}, nil
		case <-landed:
			t.land(g)
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
