package store

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
)

// Lease pins blocks: none of them is evicted or rewritten until the lease ends. It ends by Release, at its deadline, or
// when the store closes; loads that were started under it before keep its pins until they have quiesced. Safe for
// concurrent use.
type Lease struct {
	s        *Store
	keys     []block.Key
	tiers    []uint8 // tiers[i] is the pipeline's tier in which keys[i] is pinned
	deadline time.Time

	mu    sync.Mutex
	ended bool              // no load may start any more
	uses  int               // loads running under the lease, and one until it ended
	index map[block.Key]int // places of keys, made when refs in another order are asked for
}

// LeasePrefix pins the longest prefix of keys whose blocks are all Ready, each in the first tier that has it, for ttl at
// most (Config.LeaseMax where ttl is not positive or longer than that). A lease of no block is valid and holds nothing.
//
// Leases hold slots of the cache up to a limit that leaves some to everybody else. Beyond it a block is pinned in the
// tier below, and if that does not have it the prefix ends there, which Stats counts.
//
// The prefix ends at a block whose tiers cannot be asked. Errors: ErrClosed, ErrCanceled with the context's cause.
func (s *Store) LeasePrefix(ctx context.Context, keys []block.Key, ttl time.Duration) (*Lease, error) {
	if err := s.usable(); err != nil {
		return nil, fmt.Errorf("lease prefix of %d blocks: %w", len(keys), err)
	}
	if ttl <= 0 || ttl > s.cfg.LeaseMax {
		ttl = s.cfg.LeaseMax
	}
	l := &Lease{s: s, uses: 1, deadline: s.clock.Now().Add(ttl)}
	l.tiers = make([]uint8, 0, len(keys))
	l.keys = append(make([]block.Key, 0, len(keys)), keys...)
	for _, k := range l.keys {
		ti, ok := s.pin(ctx, k)
		if !ok {
			break
		}
		l.tiers = append(l.tiers, ti)
	}
	l.keys = l.keys[:len(l.tiers)]
	if ctx.Err() != nil {
		l.drop()
		return nil, fmt.Errorf("lease prefix of %d blocks: %w: %w", len(keys), errdefs.ErrCanceled, context.Cause(ctx))
	}
	if !s.janitor.add(l) {
		l.drop()
		return nil, fmt.Errorf("lease prefix of %d blocks: %w", len(keys), errdefs.ErrClosed)
	}
	s.count.leases.Add(1)
	return l, nil
}

// pin retains key in the first tier that has it Ready.
func (s *Store) pin(ctx context.Context, key block.Key) (uint8, bool) {
	short := false
	for ti := range len(s.next) + 1 {
		if ti == 0 && !s.takePin(key) {
			short = true
			continue
		}
		ok, err := s.tier(ti).Retain(ctx, key)
		if err != nil && ctx.Err() == nil {
			s.fellBack(s.tier(ti), key, err)
		}
		if ok && err == nil {
			return uint8(ti), true
		}
		if ti == 0 {
			s.givePin(key)
		}
	}
	if short {
		s.count.leasesCut.Add(1)
	}
	return 0, false
}

func (s *Store) unpin(key block.Key, ti uint8) {
	s.tier(int(ti)).Release(key)
	if ti == 0 {
		s.givePin(key)
	}
}

// takePin counts a lease's pin of a slot. The first pin of a key takes from leaseSlots: a slot counts once, however many
// leases share it.
func (s *Store) takePin(key block.Key) bool {
	s.pinMu.Lock()
	defer s.pinMu.Unlock()
	n := s.pinned[key]
	if n == 0 && !s.leaseSlots.TryAcquire(1) {
		return false
	}
	s.pinned[key] = n + 1
	return true
}

func (s *Store) givePin(key block.Key) {
	s.pinMu.Lock()
	defer s.pinMu.Unlock()
	if s.pinned[key]--; s.pinned[key] == 0 {
		delete(s.pinned, key)
		s.leaseSlots.Release(1)
	}
}

// Len returns how many blocks the lease pinned.
func (l *Lease) Len() int { return len(l.tiers) }

// Tier returns the name of the tier in which block i was found and pinned.
func (l *Lease) Tier(i int) string { return l.s.tier(int(l.tiers[i])).Name() }

// Deadline returns when the lease ends by itself.
func (l *Lease) Deadline() time.Time { return l.deadline }

// Release ends the lease. It does not wait: loads running under the lease keep its pins until they have quiesced. Later
// calls do nothing.
func (l *Lease) Release() {
	if l.finish() {
		l.s.janitor.remove(l)
	}
}

// finish ends the right to start loads and gives back the lease's own use of the pins. It says whether it was the first.
func (l *Lease) finish() bool {
	l.mu.Lock()
	first := !l.ended
	l.ended = true
	l.mu.Unlock()
	if first {
		l.unuse()
	}
	return first
}

// use lets a load of refs run under the lease, until unuse.
func (l *Lease) use(s *Store, refs []Ref) error {
	if l.s != s {
		return fmt.Errorf("the lease is of another store, whose blocks alone it pins: %w", errdefs.ErrInvalid)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := l.lacks(refs); i >= 0 {
		return fmt.Errorf("ref %d (block %s) is none of the %d blocks that the lease pins; load it without the lease, or lease its prefix: %w",
			i, refs[i].Key, len(l.tiers), errdefs.ErrInvalid)
	}
	if l.ended || !l.s.clock.Now().Before(l.deadline) {
		return fmt.Errorf("use lease of %d blocks: %w", len(l.tiers), errdefs.ErrExpired)
	}
	l.uses++
	return nil
}

// lacks returns the first ref whose block is not pinned, or -1. Mostly refs are in the order of the keys.
func (l *Lease) lacks(refs []Ref) int {
	next := 0
	for i := range refs {
		if next < len(l.keys) && l.keys[next] == refs[i].Key {
			next++
			continue
		}
		if l.index == nil {
			l.index = make(map[block.Key]int, len(l.keys))
			for k := range l.keys {
				l.index[l.keys[k]] = k
			}
		}
		at, ok := l.index[refs[i].Key]
		if !ok {
			return i
		}
		next = at + 1
	}
	return -1
}

func (l *Lease) unuse() {
	l.mu.Lock()
	l.uses--
	last := l.uses == 0
	l.mu.Unlock()
	if last {
		l.drop()
	}
}

func (l *Lease) drop() {
	for i, k := range l.keys[:len(l.tiers)] {
		l.s.unpin(k, l.tiers[i])
	}
}
