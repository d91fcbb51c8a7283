package file

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// recount counts the files of every directory. A folder that cannot be listed keeps its old count.
func (a *area) recount(ctx context.Context) error {
	a.space.beginRecount()
	var errs []error
	for _, d := range a.dirs {
		if err := a.recountDir(ctx, d); err != nil {
			errs = append(errs, fmt.Errorf("count blocks: directory %s: %w", d.root, err))
		}
	}
	return errors.Join(errs...)
}

func (a *area) recountDir(ctx context.Context, d *dir) error {
	there, err := listBuckets(d)
	if err != nil {
		return err
	}
	var errs []error
	for i := range d.buckets {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// A folder that was created after the listing contains only blocks that are counted, or
		// those of another process.
		if !there[i] && a.space.empty(&d.buckets[i]) {
			continue
		}
		if err := a.recountBucket(d, byte(i)); err != nil {
			errs = append(errs, err)
		}
	}
	return joinFew(errs)
}

// recountLost recounts only the folders in which counted files were missing.
func (a *area) recountLost() {
	if !a.space.takeAnyLost() {
		return
	}
	for _, d := range a.dirs {
		for i := range d.buckets {
			if a.space.takeLost(&d.buckets[i]) && a.recountBucket(d, byte(i)) != nil {
				a.count.errors.Add(1)
			}
		}
	}
}

// noteMissing schedules a recount of a missing block's folder if the block was counted: this
// process has verified its file, or has pinned it.
func (t *Tier) noteMissing(key block.Key, pinned bool) {
	if t.proofs.take(key) || pinned {
		d := dirOf(t.dirs, key)
		d.area.space.markLost(&d.buckets[key[0]])
		d.area.collectSoon()
	}
}

// countTries is the number of attempts to count a folder that changes during the count. After that
// the folder keeps its count, which lacks only changes by other processes.
const countTries = 3

func (a *area) recountBucket(d *dir, i byte) error {
	b := &d.buckets[i]
	for range countTries {
		changes, stable := a.space.beginCount(b)
		keys, _, err := listBucket(d, i)
		if err != nil {
			return err
		}
		bytes := int64(0)
		for _, key := range keys {
			bytes += a.formats.ImageBytes(key)
		}
		if stable && a.space.setCount(b, int64(len(keys)), bytes, changes) {
			break
		}
	}
	return nil
}

// alone reports whether no other process has one of the directories open for writing.
func (a *area) alone() bool {
	for _, d := range a.dirs {
		sessions, err := blockdir.Names(d, tmpName)
		if err != nil || len(sessions) > 1 {
			return false
		}
	}
	return true
}
