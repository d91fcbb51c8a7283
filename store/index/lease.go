package index

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

// Lease pins blocks: none of them is evicted or rewritten until the lease ends. It ends by Release, at its deadline, or
// when its index closes; loads that were started under it before keep its pins until they have quiesced. Safe for
// concurrent use.
type Lease struct {
	x        *Index
	keys     []block.Key
	runs     []run  // where keys are pinned, in their order
	one      [1]run // room for them
	deadline time.Time

	mu       sync.Mutex
	ended    bool              // no load may start any more
	released bool              // it ended by Release
	uses     int               // loads running under the lease, and one until it ended
	index    map[block.Key]int // places of keys, made when keys in another order are asked for
}

// run is some keys in a row that one tier pins: up to end, from the end of the run before.
type run struct{ tier, end int }

// LeasePrefix pins the longest prefix of keys whose blocks are all Ready, each in the first tier
// that has it, for ttl at most. Config.LeaseMax bounds ttl, and is the default where ttl is zero. A
// lease of no block is valid and holds nothing. keys are in the order of a prompt, of all page
// groups by their tokens: the tiers evict the last first.
//
// Leases hold slots up to a limit that leaves some to everybody else. Beyond it blocks are pinned in the
// tier below, and if that does not have one the prefix ends there, which Stats counts.
//
// The prefix ends at a block whose tiers cannot be asked. Errors: ErrClosed, ErrCanceled with the
// context's cause, ErrInvalid for a negative ttl and for a zero key.
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
	l.runs = l.one[:0]
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

// pin retains keys, run by run, until one that no tier has, and cuts them there. It notes the order
// of those that are not in the first tier, before a tier below is asked for them or a dump writes
// them.
func (l *Lease) pin(ctx context.Context) {
	tiers := l.x.c.Tiers
	at, short := 0, false // short: the next key is where slots are, and leases may hold no more of them
	noted := false
	for ti := 0; ti < len(tiers) && at < len(l.keys); {
		ask := l.keys[at:]
		if ti > 0 && !noted {
			l.x.note(block.Key{}, l.keys, at)
			noted = true
		}
		if ti > 0 && !short {
			ask = ask[:l.x.lacking(ctx, tiers[:ti], ask)]
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
		// The tiers above have not been asked for what comes after a run of this one.
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

// lookAhead is how many keys are looked up in the tiers above before a run is asked for below.
const lookAhead = 128

// lacking returns how many of keys, from the first on, no tier above has: one at least, the first, which they have refused.
func (x *Index) lacking(ctx context.Context, above []tier.Tier, keys []block.Key) int {
	n := min(len(keys), lookAhead)
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

// Len returns how many blocks the lease pinned.
func (l *Lease) Len() int { return len(l.keys) }

// Tier returns the name of the tier in which block i was found and pinned.
func (l *Lease) Tier(i int) string {
	at := slices.IndexFunc(l.runs, func(r run) bool { return i < r.end })
	return l.x.c.Tiers[l.runs[at].tier].Name()
}

// Below says whether block i is pinned in a tier below the first.
func (l *Lease) Below(i int) bool {
	at := slices.IndexFunc(l.runs, func(r run) bool { return i < r.end })
	return l.runs[at].tier > 0
}

// Keys returns the keys of the blocks that the lease pinned, which are not to be changed.
func (l *Lease) Keys() []block.Key { return l.keys }

// Deadline returns when the lease ends by itself.
func (l *Lease) Deadline() time.Time { return l.deadline }

// Release ends the lease. It does not wait: loads running under the lease keep its pins until they have quiesced. Later
// calls do nothing.
func (l *Lease) Release() {
	if l.finish(true) {
		l.x.janitor.remove(l)
	}
}

// finish ends the right to start loads and gives back the lease's own use of the pins. It reports
// whether this is the first call.
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

// Begin lets a load of keys run under the lease, until End. Errors: ErrInvalid where the lease is of another index or does not
// pin all of keys, in any order; ErrExpired where it has ended, also by Release.
func (l *Lease) Begin(x *Index, keys []block.Key) error {
	if l.x != x {
		return fmt.Errorf("the lease is of another store, whose blocks alone it pins: %w", errdefs.ErrInvalid)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := l.lacks(keys); i >= 0 {
		return fmt.Errorf("ref %d (block %s) is none of the %d blocks that the lease pins; load it without the lease, or lease its prefix: %w",
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

// releasedError is the ErrExpired of a lease of so many blocks that was released.
type releasedError int

func (n releasedError) Error() string {
	return fmt.Sprintf("the lease of %d blocks was released", int(n))
}

func (releasedError) Unwrap() error { return errdefs.ErrExpired }

// lacks returns the first of keys that is not pinned, or -1. Mostly they are in the order of the lease's.
func (l *Lease) lacks(keys []block.Key) int {
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

// End undoes one Begin that returned nil.
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
