package file

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/internal/usage"
)

// A long prefix is looked at in shares of shareBlocks, the first alone, since many prefixes end soon, the others by retainers goroutines. A
// look takes a few microseconds, or a round trip to a server. Blocks behind a gap that were looked at count as used.
const (
	shareBlocks = 16
	retainers   = 8
)

// Retain pins blocks against removal by this process, up to the first that is not there; see the package's comment for others.
func (t *Tier) Retain(ctx context.Context, keys []block.Key) (int, error) {
	if err := t.enter(ctx); err != nil {
		return 0, err
	}
	defer t.leave()
	n, err := t.retainRow(ctx, keys[:min(len(keys), shareBlocks)])
	if rest := keys[n:]; err == nil && n == shareBlocks && len(rest) > 0 {
		var more int
		more, err = t.retainBeside(ctx, rest)
		n += more
	}
	t.count.retained.Add(int64(n))
	t.count.hits.Add(int64(n))
	if n < len(keys) && err == nil {
		t.count.misses.Add(1)
	}
	return n, err
}

// retainBeside pins blocks by several goroutines, up to the first that is not there, and lets go of those behind it.
func (t *Tier) retainBeside(ctx context.Context, keys []block.Key) (n int, err error) {
	type share struct {
		n   int
		err error
	}
	shares := make([]share, (len(keys)+shareBlocks-1)/shareBlocks)
	of := func(i int) []block.Key { return keys[i*shareBlocks : min((i+1)*shareBlocks, len(keys))] }
	var next atomic.Int64
	var ended atomic.Bool // some share has; all before it are begun, and are finished
	work := func() {
		for !ended.Load() {
			i := int(next.Add(1)) - 1
			if i >= len(shares) {
				return
			}
			s := &shares[i]
			if s.n, s.err = t.retainRow(ctx, of(i)); s.n < len(of(i)) {
				ended.Store(true)
			}
		}
	}
	var beside sync.WaitGroup
	for range min(len(shares), retainers) - 1 {
		beside.Go(work)
	}
	work()
	beside.Wait()
	whole := true
	for i, s := range shares {
		if !whole {
			t.unpin(of(i)[:s.n]...)
			continue
		}
		n, err, whole = n+s.n, s.err, s.n == len(of(i))
	}
	return n, err
}

// retainRow pins blocks one after the other, up to the first that is not there.
func (t *Tier) retainRow(ctx context.Context, keys []block.Key) (int, error) {
	for n, key := range keys {
		if ctx.Err() != nil {
			return n, fmt.Errorf("retain block %s: %w", key, context.Cause(ctx))
		}
		if ok, err := t.retain(key); !ok {
			return n, err
		}
	}
	return len(keys), nil
}

func (t *Tier) retain(key block.Key) (bool, error) {
	// Pinned before it is looked at: whoever removes files looks at the pins first.
	if !t.owners.Pin(key) {
		return false, nil
	}
	d := dirOf(t.dirs, key)
	info, err := d.Stat(blockName(key))
	_, w := t.owners.Look(key)
	if err == nil && w != usage.Publishing && t.plausible(key, info) == nil {
		t.touch(d, key, info)
		return true, nil
	}
	t.unpin(key)
	if err == nil || blockdir.Gone(err) {
		return false, nil
	}
	return false, t.fail(fmt.Errorf("retain block %s: %w", key, err))
}

// Release undoes one Retain of each key.
func (t *Tier) Release(keys []block.Key) {
	t.unpin(keys...)
	t.count.retained.Add(-int64(len(keys)))
}

func (t *Tier) unpin(keys ...block.Key) {
	if t.owners.Unpin(keys) {
		for _, a := range t.areas {
			a.space.released()
		}
	}
}
