package dump

import (
	"context"
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store/batch"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier"
)

const (
	firstBlocks = 128 // blocks of the first batch, so that copying starts early
	// maxGroups is the number of groups that hold slots: one is copied, the next is queued in the
	// stream, and earlier ones are sealed.
	maxGroups = 4
)

// copyBlocks copies todo with all shards at once, group by group. While a group is copied, earlier
// groups are sealed and published.
func (t *Task) copyBlocks() {
	n := min(firstBlocks, t.d.batchBlocks)
	for {
		for len(t.sc.todo) > 0 && len(t.groups) < maxGroups {
			// Wait for a slot only if the task has no groups: only this goroutine releases the
			// slots of its groups.
			if !t.startGroup(n, len(t.groups) == 0) {
				break
			}
			n = t.d.batchBlocks
		}
		if len(t.groups) > 0 {
			t.waitProgress()
		} else if len(t.sc.todo) == 0 {
			return
		}
	}
}

// startGroup starts copying up to n blocks of todo. It reports whether a group was started. See
// reserveGroup.
func (t *Task) startGroup(n int, wait bool) bool {
	g := t.reserveGroup(n, wait)
	if g == nil {
		return false
	}
	g.PlanBlocks(t.d.PartBytes)
	t.submit(g, nil)
	t.groups = append(t.groups, g)
	return true
}

// reserveGroup reserves slots for up to n blocks of todo. If wait is set, the task holds no slots,
// and reserveGroup waits for the first slot. It takes further slots only if they are free. Blocks
// that need no copy, and blocks that another task fills, leave todo. If no block is left or no slot
// is free, reserveGroup returns nil.
func (t *Task) reserveGroup(n int, wait bool) *group {
	sc := t.sc
	g := &group{Group: sc.buffers.NewGroup((*owner)(t))}
	if t.direct {
		g.Slots = t.p.Direct.Dumps.Slots()
	}
	used := 0
	for _, i := range sc.todo {
		if g.Blocks == n {
			break
		}
		if err := context.Cause(t.base.Context()); err != nil {
			t.failBlock(i, err)
			used++
			continue
		}
		first := wait && g.Blocks == 0
		fill, err := t.reserve(i, first)
		if err != nil && !first && pipeline.IsBusy(err) {
			break
		}
		used++
		switch {
		case err == nil:
			sc.items[i].fill = fill
			g.Add(i, sc.Groups[i], sc.Refs.Refs[i].Page, fill.Index())
		case pipeline.IsExists(err):
			t.handleExisting(i)
		default:
			t.failBlock(i, err)
		}
	}
	sc.todo = append(sc.todo[:0], sc.todo[used:]...)
	if g.Blocks == 0 {
		sc.buffers.Release(g.Group)
		return nil
	}
	if t.copySums {
		g.ReserveSums(0)
	}
	return g
}

// reserve reserves a slot for block i.
func (t *Task) reserve(i int32, wait bool) (tier.Fill, error) {
	if !t.direct {
		return t.p.Reserve(t.base.Context(), t.sc.Keys[i], wait)
	}
	d, err := t.p.ReserveDump(t.base.Context(), wait)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// handleExisting handles a block that is in the cache or that another task is filling.
func (t *Task) handleExisting(i int32) {
	slot, err := t.p.Cache.Open(t.p.NoWait(), t.sc.Keys[i])
	switch {
	case err == nil:
		t.skip(i)
		t.enqueueWrite(i, slot)
	case pipeline.IsNotFound(err) || pipeline.IsBusy(err):
		t.sc.filling = append(t.sc.filling, i) // waitForOthers waits when the task holds no slots
	default:
		t.failBlock(i, err)
	}
}

// submit submits the parts of g that are planned and not yet submitted. The copies start after the
// device work in after.
func (t *Task) submit(g *group, after []stream.Recorded) {
	ctx := t.base.Context()
	if len(after) > 0 { // the stream may block before it accepts the dependency
		bounded, cancel := t.p.WithTimeout(ctx, t.p.LeaseMax)
		defer cancel()
		ctx = bounded
	}
	hadErr := g.Err
	g.Submit(ctx, batch.SubmitOptions{Sums: t.copySums, After: after})
	if hadErr == nil && g.Err != nil && ctx.Err() != nil && t.base.Context().Err() == nil {
		g.Err = fmt.Errorf("the stream did not accept recorded work in %v: %w: %w", t.p.LeaseMax, errdefs.ErrExpired, g.Err)
	}
}

// waitProgress waits until a part has completed or been sealed, and processes it. If the task is
// canceled meanwhile, waitProgress ends the fills that are not being sealed, so that no other task
// waits for them. Their slots are in quarantine until their group is no longer copied.
func (t *Task) waitProgress() {
	var oldestDone, canceled <-chan struct{}
	busy := false
	for _, g := range t.groups {
		busy = busy || !g.finished()
		if g.AllResolved() {
			continue
		}
		if oldestDone == nil {
			oldestDone = g.OldestDone()
		}
		if g.quiesced == nil {
			canceled = t.base.Context().Done()
		}
	}
	if busy { // if false, the stream refused a group
		select {
		case <-oldestDone:
		case <-t.sc.buffers.Wake():
		case <-canceled:
			for _, g := range t.groups {
				t.quarantine(g)
			}
		}
	}
	for n := 0; n < len(t.groups); {
		g := t.groups[n]
		t.advance(g)
		if !g.finished() {
			n++
			continue
		}
		t.groups = slices.Delete(t.groups, n, n+1)
		t.endGroup(g)
	}
}

// advance processes completed and sealed parts of g.
func (t *Task) advance(g *group) {
	completed := g.Poll()
	if g.layerwise {
		completed = g.sealLayers(context.Cause(t.base.Context()))
	}
	for n := completed.From; n < completed.To; n++ {
		t.releaseSources(g.Parts[n].Blocks.Len())
		g.EnqueueChecks(n)
	}
	for n := g.NextChecked(g.Completed); n >= 0; n = g.NextChecked(g.Completed) {
		t.handleSealed(g, n)
	}
}

// quarantine cancels g and ends the fills of the blocks that are not being sealed.
func (t *Task) quarantine(g *group) {
	if g.quiesced != nil || g.AllResolved() {
		return
	}
	cause := context.Cause(t.base.Context())
	g.Fail(cause)
	g.Cancel()
	g.Freeze()
	g.quiesced = make(chan struct{})
	n := 0
	for i := range g.unsealed {
		t.sc.items[i].fill.Quarantine(cause, g.quiesced)
		n++
	}
	t.p.Count.Quarantined.Add(int64(n))
}

// endGroup fails the blocks of g that were not sealed. Their slots are no longer accessed.
func (t *Task) endGroup(g *group) {
	if g.quiesced != nil {
		close(g.quiesced)
	}
	for i := range g.unsealed {
		if g.quiesced == nil {
			t.sc.items[i].fill.Abort(g.Err)
		}
		t.sc.items[i].fill = nil
		t.failBlock(i, g.Err)
	}
	t.sc.buffers.Release(g.Group)
}

// group is a batch group of a dump.
type group struct {
	*batch.Group
	// layerwise is set if the parts hold some shards of all blocks. The blocks are sealed after all
	// parts have completed: see sealLayers, which clears it.
	layerwise bool
	// quiesced is set if the dump was canceled and the fills of unsealed blocks are in quarantine.
	// It is closed when their slots are no longer accessed.
	quiesced chan struct{}
}

// finished reports whether no part of g is being copied or sealed.
func (g *group) finished() bool { return g.AllResolved() && g.Checked == g.Completed }

// sealLayers returns the parts by which the blocks of a layerwise group are sealed, once all shards
// have completed. It returns none before that, or if the group has failed, or if cause, the reason
// of a cancellation, is not nil.
func (g *group) sealLayers(cause error) batch.Span {
	g.SkipChecks()
	if !g.AllResolved() {
		return batch.Span{}
	}
	if g.Fail(cause); g.Err != nil {
		return batch.Span{}
	}
	g.layerwise = false
	return g.AddSealParts()
}

// unsealed yields the blocks that are not being sealed: those of parts that have not completed, or
// all blocks of a layerwise group.
func (g *group) unsealed(yield func(i int32) bool) {
	if g.layerwise || g.Completed == 0 { // also if no part is planned
		g.All(yield)
		return
	}
	for _, p := range g.Parts[g.Completed:] {
		for _, i := range g.ItemsOf(p) {
			if !yield(i) {
				return
			}
		}
	}
}
