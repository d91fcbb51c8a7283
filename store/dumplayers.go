package store

import (
	"context"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
)

// copyLayers dumps todo shard by shard, in the order in which they are submitted. Slots are held at the client's
// pleasure, so they are counted in layerSlots, all of a chunk at once, before the first is taken.
func (t *DumpTask) copyLayers() {
	for len(t.sc.todo) > 0 {
		want := int64(min(len(t.sc.todo), t.s.chunk))
		wait, cancel := t.s.waitCtx(t.ctx)
		err := t.s.layerSlots.Acquire(wait, want)
		cancel()
		if err != nil {
			t.failAll(fmt.Errorf("other layerwise dumps hold all %d slots that such may: %w: %w", t.s.layers, errdefs.ErrBusy, err))
			return
		}
		g := t.reserveGroup(int(want), true)
		if g != nil {
			t.copyChunk(g)
		}
		t.s.layerSlots.Release(want)
	}
}

// copyChunk copies every shard of g's blocks as it is submitted.
func (t *DumpTask) copyChunk(g *group) {
	for k := range t.s.shards {
		sub, err := t.arrival(g, k)
		if err != nil {
			g.fail(err)
			break
		}
		t.submit(g, k, sub.shard)
		if g.err != nil {
			break
		}
	}
	t.complete(g)
}

// arrival returns the k-th submission, waiting for it and for what it has to come after. Meanwhile it takes note of what g
// has copied: a copy that failed ends the wait.
func (t *DumpTask) arrival(g *group, k int) (submission, error) {
	if k == len(t.arrivals) {
		sub, err := t.nextSubmission(g)
		if err != nil {
			return submission{}, err
		}
		t.arrivals = append(t.arrivals, sub)
	}
	sub := &t.arrivals[k]
	if !sub.met {
		if err := t.met(sub.after); err != nil {
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
	idle := t.s.clock.NewTimer(t.s.cfg.LeaseMax)
	defer idle.Stop()
	for g.err == nil {
		var landed <-chan struct{}
		if !g.quiet() {
			landed = g.oldest().Done()
		}
		select {
		case sub := <-t.shardCh:
			return sub, nil
		case <-landed:
			t.land(g)
		case <-t.ctx.Done():
			return submission{}, context.Cause(t.ctx)
		case <-t.s.closing:
			return submission{}, fmt.Errorf("store is closing, shard %d of %d was not submitted: %w", len(t.arrivals)+1, t.s.shards, errdefs.ErrClosed)
		case <-idle.Chan():
			return submission{}, fmt.Errorf("shard %d of %d was not submitted within %v: %w", len(t.arrivals)+1, t.s.shards, t.s.cfg.LeaseMax, errdefs.ErrExpired)
		}
	}
	return submission{}, g.err
}
