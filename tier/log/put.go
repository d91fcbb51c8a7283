package log

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/internal/usage"
)

// Put stores the block. When it returns nil, the block can be found and is as durable as the policy
// requires. Put reads and verifies an existing block, unless this process has already done so. It
// copies a damaged block to quarantine, and replaces blocks that are damaged or unreadable.
//
// Put waits while another Put writes the same block, for earlier writes, and at the bound for
// space. If ctx ends during the last two it returns ErrBusy. On a full disk it frees space of the
// tier. Without a bound it returns ErrNoSpace. After that, or if no space could be freed for
// spacePatience, writes pause: see Stats.
func (t *Tier) Put(ctx context.Context, key block.Key, src mem.Extent) error {
	var err [1]error
	t.PutMany(ctx, []block.Key{key}, []mem.Extent{src}, err[:])
	return err[0]
}

// PutMany stores many blocks like Put, with common writes. errs[i] is the result for keys[i]. If
// the slices differ in length, all errs wrap ErrInvalid. A key that occurs twice is stored twice.
func (t *Tier) PutMany(ctx context.Context, keys []block.Key, srcs []mem.Extent, errs []error) {
	if len(keys) != len(srcs) || len(keys) != len(errs) {
		for i := range errs {
			errs[i] = fmt.Errorf("put %d blocks from %d images, with %d errors: %w", len(keys), len(srcs), len(errs), errdefs.ErrInvalid)
		}
		return
	}
	if err := t.beginOp(ctx); err != nil {
		for i := range errs {
			errs[i] = err
		}
		return
	}
	defer t.ops.EndOp()
	jobs := make([]*job, 0, len(keys))
	for i, key := range keys {
		j := &job{t: t, key: key, result: &errs[i]}
		*j.result = nil
		if j.err = j.check(srcs[i]); j.err != nil {
			j.finish()
			continue
		}
		jobs = append(jobs, j)
	}
	for len(jobs) > 0 {
		jobs = t.putRound(ctx, jobs)
	}
}

// job is the state of storing one block.
type job struct {
	t        *Tier
	key      block.Key
	image    []byte
	pending  pending
	replaces bool // the stored block cannot be read
	cause    error
	owned    bool
	full     int // number of writes that failed on a full disk
	err      error
	result   *error
}

func (j *job) check(src mem.Extent) (err error) {
	if j.image, err = blockdir.Image(j.t.formats, j.key, src); err != nil {
		return err
	}
	if j.t.cfg.ReadOnly {
		return errReadOnly
	}
	if err = j.t.formats.Verify(j.image, j.key); err != nil {
		return err
	}
	return j.t.makePending(&j.pending, j.key, j.image)
}

// finish ends a job and sets its result.
func (j *job) finish() {
	if j.owned {
		j.t.locks.Unlock(j.key)
		j.owned = false
		j.t.space.notifyReleased() // the block can be evicted now
	}
	if j.err == nil {
		return
	}
	if j.cause != nil {
		j.err = errors.Join(j.err, j.cause)
	}
	*j.result = fmt.Errorf("write block %s: %w", j.key, j.err)
	if !errors.Is(j.err, errdefs.ErrInvalid) && !errors.Is(j.err, tier.ErrDirectFailed) { // otherwise the caller will call Put
		j.t.count.errors.Add(1)
	}
}

// putRound processes jobs and returns the remaining ones: those of blocks that other calls write,
// and those without space. It waits only for the first block, while it has locked no other block,
// so that two calls cannot wait for each other.
func (t *Tier) putRound(ctx context.Context, jobs []*job) (left []*job) {
	var ready []*job
	for i, j := range jobs {
		switch {
		case i == 0:
			if j.err = t.locks.Lock(ctx, t.ctx.Done(), j.key, usage.Writing); j.err != nil {
				j.finish()
				continue
			}
		case t.locks.TryLock(j.key, usage.Writing) != nil:
			left = append(left, j)
			continue
		}
		j.owned = true
		there, err := t.checkStored(ctx, j)
		if j.err = err; there || err != nil {
			j.finish()
			continue
		}
		ready = append(ready, j)
	}
	if len(ready) == 0 {
		return left
	}
	now := t.clock.Now()
	since := t.space.freedCount()
	if err := t.pause.Err(now); errors.Is(err, errdefs.ErrNoSpace) {
		for _, j := range ready {
			j.err = err
			j.finish()
		}
		return left
	}
	w := &putRequest{left: len(ready), done: make(chan struct{})}
	recs := make([]*pending, len(ready))
	for i, j := range ready {
		j.pending.put, recs[i] = w, &j.pending
	}
	t.commit(ctx, w, recs)
	var retry []*job
	for _, j := range ready {
		if t.committed(j) {
			retry = append(retry, j)
		} else {
			j.finish()
		}
	}
	if len(retry) == 0 {
		return left
	}
	// Blocks without space are unlocked during the wait.
	for _, j := range retry {
		t.locks.Unlock(j.key)
		j.owned = false
	}
	if err := t.waitForSpace(ctx, since); err != nil {
		for _, j := range retry {
			j.err = err
			j.finish()
		}
		return left
	}
	return append(left, retry...)
}

// fullTries is the number of attempts of a block to free space on a full disk.
const fullTries = 4

// committed handles the result of a write. It reports whether to try again when there is space.
func (t *Tier) committed(j *job) (retry bool) {
	switch err := j.pending.err; {
	case j.pending.quiesced != nil:
		j.err = err
	case err == nil:
		t.pause.End()
		if j.replaces {
			t.count.replaced.Add(1)
		}
		t.count.puts.Add(1)
		t.count.writtenBytes.Add(t.formats.ImageBytes(j.key))
		return false
	case errors.Is(err, errBoundFull):
		return true
	case errors.Is(err, errdefs.ErrNoSpace):
		if j.full++; j.full < fullTries && t.space.shrink(t.clock.Now()) {
			t.count.errors.Add(1)
			t.collectSoon()
			return true
		}
		t.pause.Begin(t.clock.Now(), err)
		j.err = err
	default:
		j.err = err
	}
	return false
}

// spacePatience bounds the wait of a write while emptying segments fails. If only blocks in use
// prevent it, the write waits until its context ends.
const spacePatience = 10 * time.Second

func (t *Tier) waitForSpace(ctx context.Context, since uint64) error {
	if err := t.pause.Err(t.clock.Now()); err != nil {
		return err
	}
	wake := t.space.wait(since)
	defer t.space.stopWaiting()
	t.collectSoon()
	full := func(cause error) error {
		return fmt.Errorf("the %d bytes that the tier may use are full, and no block can be removed: %w: %w",
			t.cfg.MaxBytes, errdefs.ErrBusy, cause)
	}
	ticker := t.clock.NewTicker(spacePatience)
	defer ticker.Stop()
	for {
		select {
		case <-wake:
			return nil
		case <-t.ctx.Done():
			return errdefs.ErrClosed
		case <-ctx.Done():
			return full(errors.Join(context.Cause(ctx), *t.failure.Load()))
		case <-ticker.Chan():
			if failure := *t.failure.Load(); failure != nil {
				err := full(failure)
				t.pause.Begin(t.clock.Now(), err)
				return err
			}
			t.collectSoon()
		}
	}
}

// checkStored reports whether the job's block is stored, intact and as durable as the policy
// requires. It verifies the block unless this process has already done so. The caller has locked
// the key.
func (t *Tier) checkStored(ctx context.Context, j *job) (there bool, err error) {
	j.replaces, j.cause = false, nil
	e, ok := t.table.get(j.key)
	if !ok {
		return false, nil
	}
	if e.flags&seen == 0 {
		buf := t.borrow()
		defer t.buffers.Put(buf)
		image := (*buf)[:t.formats.ImageBytes(j.key)]
		switch e, err = t.load(ctx, j.key, image, true); {
		case err == nil:
		case errors.Is(err, errdefs.ErrNotFound):
			return false, nil // the block was removed meanwhile
		case ctx.Err() != nil:
			return false, context.Cause(ctx)
		case errors.Is(err, errdefs.ErrCorrupt):
			t.count.corrupt.Add(1)
			t.count.replaced.Add(1)
			t.setAsideOwned(ctx, j.key, e, image)
			return false, nil
		default:
			t.count.errors.Add(1)
			j.replaces, j.cause = true, err
			return false, nil
		}
	}
	t.checkName(e.segment)
	if !t.durable(e) {
		return false, nil // a sync failed or the file was removed: write the block again
	}
	t.used(j.key)
	return true, nil
}

func (t *Tier) borrow() *[]byte {
	buf, _ := t.buffers.Get().(*[]byte)
	if buf == nil {
		b := make([]byte, t.formats.MaxImageBytes())
		buf = &b
	}
	return buf
}
