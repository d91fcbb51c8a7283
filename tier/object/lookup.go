package object

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/usage"
)

// listFrom is the number of blocks of a run from which Kept lists the run. Storing fewer blocks
// that may exist costs no more requests.
const listFrom = 4

// wanted is a block of a lookup.
type wanted struct {
	key block.Key
	place
}

// search is a lookup of different blocks.
type search struct {
	t  *Tier
	mu sync.Mutex
	// ready has the blocks that exist.
	ready map[block.Key]bool
}

// find returns the blocks of keys that exist. Blocks are missing if the server does not answer. It
// returns the cause of ctx if that ends.
func (t *Tier) find(ctx context.Context, keys []block.Key) (map[block.Key]bool, error) {
	within, cancel := t.b.begin(ctx)
	defer cancel()
	s := search{t: t, ready: make(map[block.Key]bool)}
	s.each(t.runs(keys), func(run []wanted) {
		if run[0].alone {
			s.head(within, run[0])
			return
		}
		rest := s.page(within, run[0].run, run)
		s.each(group(rest, func(w wanted) string { return w.part }), func(part []wanted) {
			rest := s.page(within, part[0].part, part)
			s.each(group(rest, func(w wanted) string { return w.name }), func(one []wanted) { s.head(within, one[0]) })
		})
	})
	return s.ready, canceled(within)
}

// runs returns the different keys that are not remembered as misses, by run.
func (t *Tier) runs(keys []block.Key) [][]wanted {
	seen := make(map[block.Key]bool, len(keys))
	var all []wanted
	for _, key := range keys {
		if _, err := t.c.Formats.Of(key); err == nil && !seen[key] && !t.memo.missed(key) {
			all = append(all, wanted{key, t.place(key)})
		}
		seen[key] = true
	}
	return group(all, func(w wanted) string { return w.run })
}

// group returns the elements of all by name, in their order.
func group(all []wanted, name func(wanted) string) (groups [][]wanted) {
	at := make(map[string]int)
	for _, w := range all {
		i, ok := at[name(w)]
		if !ok {
			i = len(groups)
			at[name(w)], groups = i, append(groups, nil)
		}
		groups[i] = append(groups[i], w)
	}
	return groups
}

// each calls f for each group, concurrently.
func (s *search) each(groups [][]wanted, f func([]wanted)) {
	var wg sync.WaitGroup
	for i := 1; i < len(groups); i++ {
		wg.Go(func() { f(groups[i]) })
	}
	if len(groups) > 0 {
		f(groups[0])
	}
	wg.Wait()
}

// page lists the first objects with a prefix. It returns the blocks of all whose state remains
// unknown, because more objects follow.
func (s *search) page(ctx context.Context, prefix string, all []wanted) (rest []wanted) {
	since := s.t.memo.begin()
	found, more, err := s.t.b.list(ctx, prefix)
	if err != nil {
		return nil
	}
	at := make(map[string]*types.Object, len(found))
	for i := range found {
		at[aws.ToString(found[i].Key)] = &found[i]
	}
	sorted := slices.IsSortedFunc(found, func(a, b types.Object) int { return compare(a.Key, b.Key) })
	var misses []block.Key
	for _, w := range all {
		switch o := at[w.name]; {
		case o != nil:
			s.add(w.key, aws.ToInt64(o.Size), version{aws.ToString(o.ETag), aws.ToTime(o.LastModified).Unix()})
		case more && (!sorted || w.name > *found[len(found)-1].Key):
			rest = append(rest, w)
		default:
			misses = append(misses, w.key)
		}
	}
	s.t.memo.addMisses(since, misses)
	return rest
}

func compare(a, b *string) int {
	x, y := aws.ToString(a), aws.ToString(b)
	switch {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

// head asks for one object.
func (s *search) head(ctx context.Context, w wanted) {
	since := s.t.memo.begin()
	size, v, err := s.t.b.head(ctx, &s.t.b.reads, w.name)
	switch {
	case err == nil:
		s.add(w.key, size, v)
	case missing(err):
		s.t.memo.addMisses(since, []block.Key{w.key})
	}
}

// add adds an object that exists, unless it is damaged.
func (s *search) add(key block.Key, size int64, v version) {
	if size != s.t.c.Formats.ImageBytes(key) || s.t.memo.isDamaged(key, v) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready[key] = true
}

// list returns the first objects with a prefix, in the order of their names, and whether more
// follow.
func (b *bucket) list(ctx context.Context, prefix string) (objects []types.Object, more bool, err error) {
	err = b.do(ctx, &b.reads, func(ctx context.Context) error {
		out, err := b.api.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &b.name, Prefix: &prefix})
		if err == nil {
			objects, more = out.Contents, aws.ToBool(out.IsTruncated) && len(out.Contents) > 0
		}
		return err
	})
	return objects, more, err
}

// head returns the size and version of an object.
func (b *bucket) head(ctx context.Context, l *lane, name string) (size int64, v version, err error) {
	err = b.do(ctx, l, func(ctx context.Context) error {
		out, err := b.api.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.name, Key: &name})
		if err == nil {
			size, v = aws.ToInt64(out.ContentLength), version{aws.ToString(out.ETag), unix(out.LastModified)}
		}
		return err
	})
	return size, v, err
}

func unix(t *time.Time) int64 { return aws.ToTime(t).Unix() }

// Lookup lists each run of the blocks. If the server is slow or gone, blocks are Absent. A block
// that was missing is Absent for up to a second, unless this tier writes it.
func (t *Tier) Lookup(ctx context.Context, keys []block.Key, states []tier.State) error {
	if len(keys) != len(states) {
		return fmt.Errorf("look up %d blocks into %d states: %w", len(keys), len(states), errdefs.ErrInvalid)
	}
	if err := t.ops.BeginOp(ctx); err != nil {
		return fmt.Errorf("look up %d blocks: %w", len(keys), err)
	}
	defer t.ops.EndOp()
	ready, err := t.find(ctx, keys)
	if err != nil {
		return fmt.Errorf("look up %d blocks: %w", len(keys), err)
	}
	for i, key := range keys {
		states[i] = tier.Absent
		if ready[key] {
			states[i] = tier.Ready
		}
	}
	return nil
}

// Kept implements tier.Keeper. Blocks of runs with few keys are not looked up.
func (t *Tier) Kept(ctx context.Context, keys []block.Key, kept []bool) error {
	if len(keys) != len(kept) {
		return fmt.Errorf("look up %d blocks into %d answers: %w", len(keys), len(kept), errdefs.ErrInvalid)
	}
	if err := t.ops.BeginOp(ctx); err != nil {
		return fmt.Errorf("look up %d blocks: %w", len(keys), err)
	}
	defer t.ops.EndOp()
	clear(kept)
	var ask []block.Key
	for _, run := range t.runs(keys) {
		for _, w := range run {
			if len(run) >= listFrom {
				ask = append(ask, w.key)
			}
		}
	}
	ready, err := t.find(ctx, ask)
	if err != nil {
		return fmt.Errorf("look up %d blocks: %w", len(keys), err)
	}
	for i, key := range keys {
		kept[i] = ready[key]
	}
	return nil
}

// Retain pins blocks against Delete in this process. The object store has no pins: a block that
// another process deletes is then a miss of Get.
func (t *Tier) Retain(ctx context.Context, keys []block.Key) (int, error) {
	if err := t.ops.BeginOp(ctx); err != nil {
		return 0, fmt.Errorf("retain %d blocks: %w", len(keys), err)
	}
	defer t.ops.EndOp()
	if len(keys) == 0 {
		return 0, nil
	}
	// Pin first, so that no block is deleted between the answer and its pin.
	pinned := 0
	for pinned < len(keys) && t.locks.Pin(keys[pinned]) {
		pinned++
	}
	ready, err := t.find(ctx, keys[:pinned])
	n := 0
	for err == nil && n < pinned && ready[keys[n]] {
		n++
	}
	t.locks.Unpin(keys[n:pinned])
	t.retained.Add(int64(n))
	if err != nil {
		return 0, fmt.Errorf("retain %d blocks: %w", len(keys), err)
	}
	if n < len(keys) {
		t.misses.Add(1)
	}
	return n, nil
}

// Release undoes Retain.
func (t *Tier) Release(keys []block.Key) {
	t.locks.Unpin(keys)
	t.retained.Add(-int64(len(keys)))
}

// Delete removes a block. It fails if the server is slow or gone.
func (t *Tier) Delete(ctx context.Context, key block.Key) error {
	if err := t.remove(ctx, key); err != nil {
		return fmt.Errorf("delete block %s: %w", key, err)
	}
	return nil
}

func (t *Tier) remove(ctx context.Context, key block.Key) error {
	if err := t.ops.BeginOp(ctx); err != nil {
		return err
	}
	defer t.ops.EndOp()
	if t.c.ReadOnly {
		return errdefs.ErrReadOnly
	}
	if err := t.locks.Lock(ctx, nil, key, usage.Removing); err != nil {
		return err
	}
	defer t.locks.Unlock(key)
	if pinned, _ := t.locks.State(key); pinned {
		return fmt.Errorf("it is retained: %w", errdefs.ErrBusy)
	}
	within, cancel := t.b.begin(ctx)
	defer cancel()
	name := t.place(key).name
	_, v, err := t.b.head(within, &t.b.writes, name)
	if err == nil {
		err = t.b.delete(within, name)
	}
	switch {
	case err == nil && !t.memo.isDamaged(key, v):
		t.count.add(-1, -t.c.Formats.ImageBytes(key))
	case err != nil && missing(err):
		err = fmt.Errorf("%w: %w", errdefs.ErrNotFound, err)
	case err != nil && errors.Is(err, tier.ErrUnavailable):
		t.errors.Add(1)
	}
	if err == nil {
		t.memo.forget(key)
		t.c.Events.Removed(Name, key)
	}
	return err
}

func (b *bucket) delete(ctx context.Context, name string) error {
	return b.do(ctx, &b.writes, func(ctx context.Context) error {
		_, err := b.api.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.name, Key: &name})
		return err
	})
}
