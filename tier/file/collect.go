package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
)

// collector is the tier's own goroutine: it counts what is there, then removes and recounts when asked to.
func (t *Tier) collector() {
	defer close(t.done)
	t.background(t.recount(t.ctx))
	close(t.counted)
	tooMuch, recount := t.space.due()
	for {
		if recount {
			t.background(t.recount(t.ctx))
			tooMuch, _ = t.space.due()
		}
		if tooMuch {
			_, err := t.collect(t.ctx, t.space.low)
			t.background(err)
		}
		select {
		case <-t.ctx.Done():
			return
		case <-t.kick:
			tooMuch, recount = t.space.due()
		}
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
// removed, and returns how many it removed. Blocks that are retained or being written stay.
func (t *Tier) GC(ctx context.Context, targetBytes int64) (removed int, err error) {
	if targetBytes < 0 {
		return 0, fmt.Errorf("collect down to %d bytes: %w", targetBytes, errdefs.ErrInvalid)
	}
	if err := t.enter(ctx); err != nil {
		return 0, err
	}
	defer t.leave()
	removed, err = t.collect(ctx, targetBytes/t.image)
	if err != nil {
		return removed, t.fail(fmt.Errorf("collect down to %d bytes: %w", targetBytes, err))
	}
	return removed, nil
}

// collect removes the coldest blocks until target are left.
func (t *Tier) collect(ctx context.Context, target int64) (removed int, err error) {
	// Two rounds at a time would both remove what one of them should.
	select {
	case t.round <- struct{}{}:
		defer func() { <-t.round }()
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	roots := make([]string, len(t.dirs))
	for i, d := range t.dirs {
		roots[i] = d.root
	}
	for {
		if err := t.recount(ctx); err != nil {
			return removed, err
		}
		need := t.space.blocks() - target
		if need <= 0 {
			return removed, nil
		}
		cold, err := coldest(ctx, t.fs, roots, need, t.idle)
		if err != nil {
			return removed, err
		}
		n, err := t.evictAll(ctx, cold)
		removed += n
		// Less than needed: some came into use meanwhile, others may be found. Nothing: all are in use.
		if err != nil || n == 0 || int64(n) >= need {
			return removed, err
		}
	}
}

func (t *Tier) idle(key block.Key) bool {
	pinned, w := t.owners.look(key)
	return !pinned && w == idle
}

func (t *Tier) evictAll(ctx context.Context, cold []candidate) (removed int, err error) {
	for i := range cold {
		if ctx.Err() != nil {
			return removed, context.Cause(ctx)
		}
		ok, err := t.evict(&cold[i])
		if err != nil {
			return removed, err
		}
		if ok {
			removed++
		}
	}
	return removed, nil
}

// evict removes one block unless it came into use, or was used, since it was found cold.
func (t *Tier) evict(c *candidate) (bool, error) {
	if !t.owners.tryOwn(c.key) {
		return false, nil
	}
	defer t.owners.disown(c.key)
	d := t.dirs[c.dir]
	path := blockPath(d.root, c.key)
	info, err := t.fs.Stat(path)
	if err == nil && !info.Modified.Equal(c.modified) {
		return false, nil
	}
	if err == nil {
		err = t.unname(d, c.key, func() error {
			err := t.fs.Remove(path)
			if err == nil { // before the room is given to a Put that waits for it
				t.count.evictions.Add(1)
			}
			return err
		})
	}
	if gone(err) {
		return false, nil
	}
	if err != nil {
		return false, writeError(err)
	}
	return true, nil
}

// recount counts the files of every directory.
func (t *Tier) recount(ctx context.Context) error {
	t.space.countedAll()
	var errs []error
	for _, d := range t.dirs {
		if err := t.recountDir(ctx, d); err != nil {
			errs = append(errs, fmt.Errorf("count blocks: %w", err))
		}
	}
	return errors.Join(errs...)
}

func (t *Tier) recountDir(ctx context.Context, d *dir) error {
	there, err := listBuckets(t.fs, d.root)
	if err != nil {
		return err
	}
	for i := range d.buckets {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// A folder that came after the listing holds only what was counted when it came, or another process's.
		if !there[i] && t.space.empty(&d.buckets[i]) {
			continue
		}
		if err := t.recountBucket(d, byte(i)); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tier) recountBucket(d *dir, i byte) error {
	b := &d.buckets[i]
	b.scan.Lock()
	defer b.scan.Unlock()
	keys, _, err := listBucket(t.fs, d.root, i)
	if err != nil {
		return err
	}
	t.space.counted(b, int64(len(keys)))
	return nil
}

// listBuckets says which folders <2 hex> a directory has.
func listBuckets(fsys FS, root string) (there [buckets]bool, err error) {
	all, err := fsys.ReadDir(root)
	for _, n := range all {
		if b, ok := parseBucket(n); ok {
			there[b] = true
		}
	}
	return there, err
}

func parseBucket(name string) (b byte, ok bool) {
	if len(name) != 2 {
		return 0, false
	}
	hi, lo := strings.IndexByte(hexDigits, name[0]), strings.IndexByte(hexDigits, name[1])
	return byte(hi<<4 | lo), hi >= 0 && lo >= 0
}

// listBucket returns the blocks in a bucket's folder, and the names there that are none.
func listBucket(fsys FS, root string, b byte) (keys []block.Key, others []string, err error) {
	names, err := fsys.ReadDir(bucketPath(root, b))
	if err != nil {
		if gone(err) {
			return nil, nil, nil
		}
		return nil, nil, err
	}
	keys = make([]block.Key, 0, len(names))
	for _, n := range names {
		if key, err := block.ParseKey(n); err == nil && key[0] == b {
			keys = append(keys, key)
		} else {
			others = append(others, n)
		}
	}
	return keys, others, nil
}

// candidate is a block that may be removed.
type candidate struct {
	key      block.Key
	dir      int // index of its directory
	modified time.Time
}

// coldest returns the n blocks, or fewer, that were not used for the longest time, the coldest first, over all roots.
// It leaves out those that eligible refuses. It keeps about 2n of them in memory.
func coldest(ctx context.Context, fsys FS, roots []string, n int64, eligible func(block.Key) bool) ([]candidate, error) {
	var found []candidate
	trim := func() {
		slices.SortFunc(found, func(a, b candidate) int {
			if c := a.modified.Compare(b.modified); c != 0 {
				return c
			}
			return bytes.Compare(a.key[:], b.key[:])
		})
		found = found[:min(int64(len(found)), n)]
	}
	for i, root := range roots {
		there, err := listBuckets(fsys, root)
		if err != nil {
			return nil, err
		}
		for b := range buckets {
			if !there[b] {
				continue
			}
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			keys, _, err := listBucket(fsys, root, byte(b))
			if err != nil {
				return nil, err
			}
			for _, key := range keys {
				if !eligible(key) {
					continue
				}
				info, err := fsys.Stat(blockPath(root, key))
				if gone(err) {
					continue
				}
				if err != nil {
					return nil, err
				}
				if found = append(found, candidate{key, i, info.Modified}); int64(len(found)) >= 2*n+1024 {
					trim()
				}
			}
		}
	}
	trim()
	return found, nil
}
