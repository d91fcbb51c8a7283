package index

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

// LeasePrefix pins the longest prefix of keys whose blocks are all Ready, each in the first tier
// that has it, for up to ttl. Config.LeaseMax bounds ttl, and is the default if ttl is zero. A
// lease without blocks is valid. keys are in the order of a prompt, and those of several page
// groups in the order of their tokens. The tiers evict the last blocks first.
//
// Leases may hold a limited number of slots. Beyond the limit, blocks are pinned in the tier below.
// If that tier does not have a block, the prefix ends there, and Stats.Cut counts it.
//
// The prefix also ends at a block whose tiers fail. Errors: ErrClosed, ErrCanceled with the cause
// of ctx, ErrInvalid for a negative ttl or a zero key.
func (x *Index) LeasePrefix(ctx context.Context, keys []block.Key, ttl time.Duration) (*Lease, error) {
	if err := x.usable(); err != nil {
		return nil, fmt.Errorf("lease prefix of %d blocks: %w", len(keys), err)
	}
	if ttl < 0 {
		return nil, fmt.Errorf("lease prefix of %d blocks for %v: the time is negative: %w", len(keys), ttl, errdefs.ErrInvalid)
	}
	if err := block.CheckKeys(keys); err != nil {
		return nil, fmt.Errorf("lease prefix of %d blocks: %w", len(keys), err)
	}
	if ttl == 0 || ttl > x.c.LeaseMax {
		ttl = x.c.LeaseMax
	}
	l := &Lease{x: x, uses: 1, deadline: x.c.Clock.Now().Add(ttl), keys: slices.Clone(keys)}
	l.runs = l.first[:0]
	l.pin(ctx)
	if ctx.Err() != nil {
		l.drop()
		return nil, fmt.Errorf("lease prefix of %d blocks: %w: %w", len(keys), errdefs.ErrCanceled, context.Cause(ctx))
	}
	if !x.janitor.add(l) {
		l.drop()
		return nil, fmt.Errorf("lease prefix of %d blocks: %w", len(keys), errdefs.ErrClosed)
	}
	x.leases.Add(1)
	x.missed.Add(int64(len(keys) - len(l.keys)))
	return l, nil
}

// pin retains keys, run by run, up to the first key that no tier has, and cuts keys there. Before
// it asks a lower tier for keys that the first tier does not have, it records their order. Dumps
// rely on that order too.
func (l *Lease) pin(ctx context.Context) {
	tiers := l.x.c.Tiers
	l.x.anchors.Prompt(l.keys)
	// short: the first tier has the next key, but leases may hold no more slots.
	at, short := 0, false
	noted := false
	for ti := 0; ti < len(tiers) && at < len(l.keys); {
		ask := l.keys[at:]
		if ti > 0 && !noted {
			l.x.note(block.Key{}, l.keys, at)
			noted = true
		}
		if ti > 0 && !short {
			ask = ask[:l.x.lacking(ctx, tiers[:ti], ask, lookAheadOf(tiers[ti]))]
		}
		n, err := tiers[ti].Retain(ctx, ask)
		if n > 0 {
			at, short = at+n, false
			l.runs = append(l.runs, run{ti, at})
		}
		switch {
		case err == nil || ctx.Err() != nil:
		case isBusy(err):
			short = true
		default:
			l.x.FellBack(tiers[ti], ask[min(n, len(ask)-1)], err)
		}
		// After a run of a lower tier, start with the first tier again for the next keys.
		if ti++; n > 0 && ti > 1 {
			ti = 0
		}
	}
	if short && at < len(l.keys) {
		l.x.cut.Add(1)
	}
	if at < len(l.keys) && !noted {
		l.x.note(block.Key{}, l.keys, at)
	}
	l.keys = l.keys[:at]
	l.x.used(block.Key{}, l.keys)
}

// These are the numbers of keys that are looked up in the tiers above before a lower tier retains
// a run of keys. A tier.Placed gets longer runs, because it asks a server for each.
const (
	lookAhead       = 128
	placedLookAhead = 2048
)

func lookAheadOf(t tier.Tier) int {
	if _, ok := t.(tier.Placed); ok {
		return placedLookAhead
	}
	return lookAhead
}

// lacking returns the number of keys, from the first and up to most, that none of the tiers above
// has. It is at least one, because these tiers have already refused the first key.
func (x *Index) lacking(ctx context.Context, above []tier.Tier, keys []block.Key, most int) int {
	n := min(len(keys), most)
	states := make([]tier.State, n)
	for _, t := range above {
		if err := t.Lookup(ctx, keys[:n], states[:n]); err != nil {
			if ctx.Err() == nil {
				x.FellBack(t, keys[0], err)
			}
			continue
		}
		if k := slices.Index(states[1:n], tier.Ready); k >= 0 {
			n = 1 + k
		}
	}
	return n
}

// Len returns the number of pinned blocks.
func (l *Lease) Len() int { return len(l.keys) }

// Tier returns the name of the tier in which block i was found and pinned.
func (l *Lease) Tier(i int) string { return l.x.c.Tiers[l.TierIndex(i)].Name() }

// TierIndex returns the index of the tier in which block i is pinned, from fast to slow.
func (l *Lease) TierIndex(i int) int {
	at := slices.IndexFunc(l.runs, func(r run) bool { return i < r.end })
	return l.runs[at].tier
}

// Keys returns the keys of the pinned blocks. The caller must not change them.
func (l *Lease) Keys() []block.Key { return l.keys }

// Deadline returns the time at which the lease ends.
func (l *Lease) Deadline() time.Time { return l.deadline }

// Release ends the lease. It does not wait: loads under the lease keep its pins until they have
// ended. Later calls have no effect.
func (l *Lease) Release() {
	if l.finish(true) {
		l.x.janitor.remove(l)
	}
}

// Begin starts a load of keys under the lease, which End ends. Errors: ErrInvalid if the lease
// belongs to another index or does not pin all keys, ErrExpired if the lease has ended or was
// released.
func (l *Lease) Begin(x *Index, keys []block.Key) error {
	if l.x != x {
		return fmt.Errorf("the lease belongs to another store: %w", errdefs.ErrInvalid)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := l.firstUnpinned(keys); i >= 0 {
		return fmt.Errorf("ref %d (block %s) is not one of the %d blocks of the lease; load it without the lease, or lease its prefix: %w",
			i, keys[i], len(l.keys), errdefs.ErrInvalid)
	}
	if l.released {
		return releasedError(len(l.keys))
	}
	if l.ended || !x.c.Clock.Now().Before(l.deadline) {
		return fmt.Errorf("use lease of %d blocks: %w", len(l.keys), errdefs.ErrExpired)
	}
	l.uses++
	return nil
}

// releasedError is the error of a load under a released lease. Its value is the number of blocks of
// the lease. It wraps ErrExpired.
type releasedError int

func (n releasedError) Error() string {
	return fmt.Sprintf("the lease of %d blocks was released", int(n))
}

func (releasedError) Unwrap() error { return errdefs.ErrExpired }

// firstUnpinned returns the index of the first key that is not pinned, or -1. It is fastest if keys
// are in the order of the lease.
func (l *Lease) firstUnpinned(keys []block.Key) int {
	next := 0
	for i := range keys {
		if next < len(l.keys) && l.keys[next] == keys[i] {
			next++
			continue
		}
		if l.index == nil {
			l.index = make(map[block.Key]int, len(l.keys))
			for k := range l.keys {
				l.index[l.keys[k]] = k
			}
		}
		at, ok := l.index[keys[i]]
		if !ok {
			return i
		}
		next = at + 1
	}
	return -1
}

// finish ends the lease. The pins stay until the loads that use them have ended. It reports whether
// this is the first call.
func (l *Lease) finish(released bool) bool {
	l.mu.Lock()
	first := !l.ended
	if first {
		l.ended, l.released = true, released
	}
	l.mu.Unlock()
	if first {
		l.End()
	}
	return first
}

// End ends a load that Begin has started.
func (l *Lease) End() {
	l.mu.Lock()
	l.uses--
	last := l.uses == 0
	l.mu.Unlock()
	if last {
		l.drop()
	}
}

func (l *Lease) drop() {
	from := 0
	for _, r := range l.runs {
		l.x.c.Tiers[r.tier].Release(l.keys[from:r.end])
		from = r.end
	}
}
