package log

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/internal/usage"
)

// Put writes the block, unless it is there, whole. When it returns nil the block can be found, and is as durable as the policy
// promises. A block that is there is read and verified, unless this process has written or verified it; what is damaged is set aside and
// written anew, and what cannot be read is replaced.
//
// It waits while another Put writes the same block, while what came before it is written, and, at the bound, while nothing can be removed; if
// ctx ends while it waits for one of the last two, the error wraps ErrBusy. Where the disk is full it makes room within the bound; without one
// the error wraps ErrNoSpace. After that, or where nothing could be removed for long, writing pauses: see Stats.
func (t *Tier) Put(ctx context.Context, key block.Key, src mem.Extent) error {
	var err [1]error
	t.PutMany(ctx, []block.Key{key}, []mem.Extent{src}, err[:])
	return err[0]
}

// PutMany is Put for many blocks, which share writes: errs[i] is what Put of keys[i] and srcs[i] would return. The slices have equal
// lengths, else all of errs wrap ErrInvalid. A key that is given twice is put twice.
func (t *Tier) PutMany(ctx context.Context, keys []block.Key, srcs []mem.Extent, errs []error) {
	if len(keys) != len(srcs) || len(keys) != len(errs) {
		for i := range errs {
			errs[i] = fmt.Errorf("put %d blocks from %d images, with %d errors: %w", len(keys), len(srcs), len(errs), errdefs.ErrInvalid)
		}
		return
	}
	if err := t.begin(ctx); err != nil {
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

// job is the Put of one block.
type job struct {
	t        *Tier
	key      block.Key
	image    []byte
	pending  pending
	replaces bool // what is there and cannot be read
	cause    error
	owned    bool
	full     int // times that the disk was
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
	return j.t.pend(&j.pending, j.key, j.image)
}

// finish ends a job and says how.
func (j *job) finish() {
	if j.owned {
		j.t.locks.Unlock(j.key)
		j.owned = false
		j.t.room.released() // until now the block could not make room for another
	}
	if j.err == nil {
		return
	}
	if j.cause != nil {
		j.err = errors.Join(j.err, j.cause)
	}
	*j.result = fmt.Errorf("write block %s: %w", j.key, j.err)
	if !errors.Is(j.err, errdefs.ErrInvalid) {
		j.t.count.errors.Add(1)
	}
}

// putRound does what it can for all jobs, and returns those that are left: those of blocks that others write, and those that there was
// no room for. It waits only for the first of them, and for that while it owns no other block, so that no two wait for each other.
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
		there, err := t.look(ctx, j)
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
	since := t.room.seen()
	if err := t.pause.Err(now); errors.Is(err, errdefs.ErrNoSpace) {
		for _, j := range ready {
			j.err = err
			j.finish()
		}
		return left
	}
	w := &putting{left: len(ready), done: make(chan struct{})}
	recs := make([]*pending, len(ready))
	for i, j := range ready {
		j.pending.put, recs[i] = w, &j.pending
	}
	t.commit(ctx, w, recs)
	var again []*job
	for _, j := range ready {
		if t.committed(j) {
			again = append(again, j)
		} else {
			j.finish()
		}
	}
	if len(again) == 0 {
		return left
	}
	// Those that did not fit give their blocks up while they wait, so that others get on.
	for _, j := range again {
		t.locks.Unlock(j.key)
		j.owned = false
	}
	if err := t.waitForRoom(ctx, since); err != nil {
		for _, j := range again {
			j.err = err
			j.finish()
		}
		return left
	}
	return append(left, again...)
}

// roomTries is how often a block makes room on a disk that is full before it gives up.
const roomTries = 4

// committed learns how the writing of a block ended, and says whether it is to be tried again when there is room.
func (t *Tier) committed(j *job) (again bool) {
	switch err := j.pending.err; {
	case err == nil:
		t.pause.End()
		if j.replaces {
			t.count.replaced.Add(1)
		}
		t.count.puts.Add(1)
		t.count.writtenBytes.Add(int64(len(j.image)))
		return false
	case errors.Is(err, errNoRoom):
		return true
	case errors.Is(err, errdefs.ErrNoSpace):
		if j.full++; j.full < roomTries && t.room.shrink(t.clock.Now()) {
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

// roomPatience is how long a write waits for room that cannot be made, since removing fails. Where blocks are merely in use it
// waits until its context ends.
const roomPatience = 10 * time.Second

func (t *Tier) waitForRoom(ctx context.Context, since uint64) error {
	if err := t.pause.Err(t.clock.Now()); err != nil {
		return err
	}
	wake := t.room.wait(since)
	defer t.room.stopWaiting()
	t.collectSoon()
	full := func(cause error) error {
		return fmt.Errorf("all of the %d bytes that the tier may use are taken, and nothing can be removed: %w: %w",
			t.cfg.MaxBytes, errdefs.ErrBusy, cause)
	}
	ticker := t.clock.NewTicker(roomPatience)
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

// look says whether the job's block is there, whole and as durable as the policy promises. It looks at it as a Get would, unless this
// process has before. The caller owns the key.
func (t *Tier) look(ctx context.Context, j *job) (there bool, err error) {
	j.replaces, j.cause = false, nil
	e, ok := t.table.get(j.key)
	if !ok {
		return false, nil
	}
	if e.flags&seen == 0 {
		buf := t.borrow()
		defer t.buffers.Put(buf)
		image := (*buf)[:t.formats.ImageBytes(j.key)]
		switch e, err = t.load(ctx, j.key, image, mem.Extent{}, true); {
		case err == nil:
		case errors.Is(err, errdefs.ErrNotFound):
			return false, nil // removed meanwhile
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
		return false, nil // a sync failed or the file was removed: write the block anew
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
