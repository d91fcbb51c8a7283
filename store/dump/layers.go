package dump

import (
	"context"
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store/task"
)

// copyWaiting copies chunks of todo that wait for the host program: for SubmitShard or for recorded
// work on the device. Once one chunk has succeeded, the task no longer waits for the program, and
// the rest is left to copyBlocks.
func (t *Task) copyWaiting() {
	for !t.depsResolved && len(t.sc.todo) > 0 {
		t.copyChunk()
	}
}

// copyChunk copies some blocks of todo. It acquires all slots of the chunk from waitingSlots before
// it reserves the first one, and releases them when the task no longer waits for the program, or
// holds no slots. If a dependency fails, all of todo fails.
func (t *Task) copyChunk() {
	slots := &t.d.waitingSlots
	if t.direct {
		slots = &t.d.waitingDirect
	}
	n := slots.blocks
	if !t.layerwise {
		n = min(n, t.d.batchBlocks)
	}
	want := int64(min(len(t.sc.todo), n))
	bounded, cancel := t.p.WithTimeout(t.base.Context(), t.p.WaitMax)
	err := slots.Acquire(bounded, want)
	cancel()
	if err != nil {
		t.failTodo(fmt.Errorf("dumps that wait for shards or recorded work hold their limit of %d slots: %w: %w",
			slots.slots, errdefs.ErrBusy, err))
		return
	}
	if g := t.reserveGroup(int(want), true); g != nil {
		g.layerwise = true
		if t.layerwise {
			err = t.copyShards(g)
		} else {
			err = t.copyAfterDevice(g)
		}
		t.depsResolved = g.Err == nil && err == nil && t.base.Context().Err() == nil
		t.groups = append(t.groups, g)
		t.advance(g) // processes batches that have already resolved: these send no further wake-up
	}
	for !t.depsResolved && len(t.groups) > 0 {
		t.waitProgress()
	}
	slots.Release(want)
	if err != nil {
		t.failTodo(err)
	}
}

// copyAfterDevice copies all shards of g after recorded work on the device.
func (t *Task) copyAfterDevice(g *group) error {
	g.PlanLayers(0, t.p.Map.NumLayers())
	t.submit(g, t.deviceDeps)
	return t.waitDevice(g)
}

// waitDevice waits until all batches of g have resolved, for up to LeaseMax, since g holds slots
// while the device waits for recorded work. After that it cancels the task, which releases the
// slots when the device no longer accesses them.
func (t *Task) waitDevice(g *group) error {
	timer := t.p.Clock.NewTimer(t.p.LeaseMax)
	defer timer.Stop()
	for !g.AllResolved() {
		select {
		case <-g.OldestDone():
			g.Poll()
		case <-t.base.Context().Done():
			return nil // waitProgress puts the slots in quarantine
		case <-timer.Chan():
			err := fmt.Errorf("recorded work did not complete in %v, the slots were released: %w", t.p.LeaseMax, errdefs.ErrExpired)
			t.base.CancelCause(err)
			return err
		}
	}
	return nil
}

// copyShards copies the shards of g's blocks as they are submitted. Shards that are submitted
// meanwhile share a batch, since neighbours are contiguous in slots. It returns an error of a wait
// that fails all later chunks as well.
func (t *Task) copyShards(g *group) error {
	var waitErr error
	deps, onDevice := slices.Clone(t.deviceDeps), len(t.deviceDeps) > 0
	for k := 0; k < t.p.Map.NumLayers() && g.Err == nil; {
		err := t.waitSubmission(g, k)
		if err != nil {
			if g.Err == nil {
				waitErr = err
			}
			g.Fail(err)
			break
		}
		n := k + 1
		for n < t.p.Map.NumLayers() && t.isSubmitted(n) {
			n++
		}
		for i := k; i < n; i++ {
			deps = append(deps, t.submissions[i].deviceDeps...)
		}
		onDevice = onDevice || len(deps) > 0
		t.planSubmissions(g, t.submissions[k:n])
		k = n
		if len(g.Parts) > g.SubmittedParts() { // if equal, no block has one of these shards
			t.submit(g, deps)
			deps = deps[:0] // later batches wait for them too; if the stream breaks, g fails
		}
	}
	if waitErr == nil && onDevice {
		waitErr = t.waitDevice(g)
	}
	return waitErr
}

// isSubmitted reports whether submission k has arrived and its dependencies have resolved. All
// earlier submissions must have arrived.
func (t *Task) isSubmitted(k int) bool {
	if k == len(t.submissions) {
		select {
		case sub := <-t.shards:
			t.addSubmission(sub)
		default:
			return false
		}
	}
	sub := &t.submissions[k]
	// waitSubmission returns the error of a dependency.
	if !sub.resolved && task.Pending(sub.after) {
		return false
	}
	sub.resolved = true
	return true
}

// planSubmissions plans the shards of submissions. Neighbours share a part.
func (t *Task) planSubmissions(g *group, subs []submission) {
	shards := t.sc.sorted[:0]
	for i := range subs {
		shards = append(shards, subs[i].shard)
	}
	slices.Sort(shards)
	for from, k := 0, 1; k <= len(shards); k++ {
		if k == len(shards) || shards[k] != shards[k-1]+1 {
			g.PlanLayers(shards[from], shards[k-1]+1)
			from = k
		}
	}
	t.sc.sorted = shards
}

// waitSubmission waits for submission k and then for its dependencies, for up to LeaseMax each,
// since the task holds slots. If a copy of g fails meanwhile, it returns that error.
func (t *Task) waitSubmission(g *group, k int) error {
	if k == len(t.submissions) {
		sub, err := t.nextSubmission(g)
		if err != nil {
			return err
		}
		t.addSubmission(sub)
	}
	sub := &t.submissions[k]
	if !sub.resolved {
		if err := t.waitShardDeps(g, sub); err != nil {
			return err
		}
		sub.resolved = true
	}
	return nil
}

// addSubmission appends a submission and separates its dependencies into those of the host and
// those of the device.
func (t *Task) addSubmission(sub submission) {
	sub.after, sub.deviceDeps = t.d.Env.Stream.SplitDeps(t.base.Context(), sub.after)
	t.submissions = append(t.submissions, sub)
}

// nextSubmission waits for the next call of SubmitShard.
func (t *Task) nextSubmission(g *group) (submission, error) {
	select {
	case sub := <-t.shards: // also while the store is closing
		return sub, nil
	default:
	}
	sub, err := t.waitWithSlots(g, t.shards, nil)
	if err != nil && g.Err == nil {
		err = fmt.Errorf("shard number %d of %d was not submitted: %w", len(t.submissions)+1, t.p.Map.NumLayers(), err)
	}
	return sub, err
}

// waitShardDeps waits for the dependencies of a shard.
func (t *Task) waitShardDeps(g *group, sub *submission) error {
	for k, d := range sub.after {
		var err error
		select {
		case <-d.Done(): // also while the store is closing
		default:
			if _, err = t.waitWithSlots(g, nil, d.Done()); err != nil && g.Err != nil {
				return err
			}
		}
		if err == nil {
			err = d.Err()
		}
		if err != nil {
			return fmt.Errorf("shard %d of %d: %w", sub.shard, t.p.Map.NumLayers(), task.DependencyError(sub.after, k, err))
		}
	}
	return nil
}

// waitWithSlots waits for a submission or until resolved is closed, while the task holds the slots
// of g. It returns an error after LeaseMax, if the store closes, or if a copy of g fails.
func (t *Task) waitWithSlots(g *group, shards <-chan submission, resolved <-chan struct{}) (submission, error) {
	start := t.p.Clock.Now()
	timer := t.p.Clock.NewTimer(t.p.LeaseMax)
	defer timer.Stop()
	for g.Err == nil {
		select {
		case sub := <-shards:
			return sub, nil
		case <-resolved:
			return submission{}, nil
		case <-g.OldestDone():
			g.Poll()
		case <-t.base.Context().Done():
			return submission{}, context.Cause(t.base.Context())
		case <-t.d.Scheduler.Closing():
			return submission{}, fmt.Errorf("store is closing, waited for %v: %w", t.p.Clock.Since(start), errdefs.ErrClosed)
		case <-timer.Chan():
			return submission{}, fmt.Errorf("waited for %v, the slots were released: %w", t.p.LeaseMax, errdefs.ErrExpired)
		}
	}
	return submission{}, g.Err
}
