package remote

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/internal/usage"
)

// Tier stores blocks in block servers. All methods are safe for concurrent use.
type Tier struct {
	c         Config
	placement Placement
	servers   []*server // in the order of the placement
	notes     []string
	ops       usage.OpCounter
	locks     *usage.KeyLocks // of Puts
	anchors   atomic.Pointer[tier.Anchors]
	writes    chan struct{} // an element for each Put in progress

	mu       sync.Mutex
	pins     map[block.Key][]*lease
	retained int64

	hits, misses, puts, corrupt, errors, readBytes, writtenBytes, unavailable, dropped, unanchored, lost atomic.Int64
}

var (
	_ tier.Placed     = (*Tier)(nil)
	_ tier.Reader     = (*Tier)(nil)
	_ tier.ManyPutter = (*Tier)(nil)
	_ tier.Statter    = (*Tier)(nil)
)

// Name returns Name.
func (t *Tier) Name() string { return Name }

// Notes returns a text for each server that could not be reached by Open.
func (t *Tier) Notes() []string { return t.notes }

// SetAnchors implements tier.Placed.
func (t *Tier) SetAnchors(a *tier.Anchors) { t.anchors.Store(a) }

// place returns the server of a block. A block without an anchor is placed by its own key.
func (t *Tier) place(key block.Key) *server {
	anchor, ok := t.anchors.Load().Of(key)
	if !ok {
		t.unanchored.Add(1)
		anchor = key
	}
	return t.servers[t.placement.Server(t.c.Formats.Untagged(anchor))]
}

// group has the different keys of one server, and their indices in the request.
type group struct {
	s       *server
	entries []blockio.KeyEntry
	at      map[block.Key]int // indices in entries
}

// group groups keys by server, in their order. Keys of unknown page groups are left out.
func (t *Tier) group(keys []block.Key) []*group {
	var groups []*group
	of := make(map[*server]*group, len(t.servers))
	for _, key := range keys {
		f, err := t.c.Formats.Of(key)
		if err != nil {
			continue
		}
		s := t.place(key)
		g := of[s]
		if g == nil {
			g = &group{s: s, at: make(map[block.Key]int)}
			of[s], groups = g, append(groups, g)
		}
		if _, ok := g.at[key]; !ok {
			g.at[key] = len(g.entries)
			g.entries = append(g.entries, blockio.KeyEntry{Key: key, Identity: blockio.IdentityHash(f.Identity)})
		}
	}
	return groups
}

// each calls f for each group, concurrently.
func (t *Tier) each(groups []*group, f func(i int, g *group)) {
	var wg sync.WaitGroup
	for i := 1; i < len(groups); i++ {
		wg.Go(func() { f(i, groups[i]) })
	}
	if len(groups) > 0 {
		f(0, groups[0])
	}
	wg.Wait()
}

// failed counts a request to a server that is slow or gone.
func (t *Tier) failed(err error) {
	if errors.Is(err, tier.ErrUnavailable) {
		t.unavailable.Add(1)
	}
}

// Lookup asks each server once. Blocks of servers that are slow or gone are Absent.
func (t *Tier) Lookup(ctx context.Context, keys []block.Key, states []tier.State) error {
	if len(keys) != len(states) {
		return fmt.Errorf("look up %d blocks into %d states: %w", len(keys), len(states), errdefs.ErrInvalid)
	}
	if err := t.ops.BeginOp(ctx); err != nil {
		return fmt.Errorf("look up %d blocks: %w", len(keys), err)
	}
	defer t.ops.EndOp()
	groups := t.group(keys)
	ready := make([]map[block.Key]bool, len(groups))
	t.each(groups, func(i int, g *group) {
		present, err := t.exist(ctx, g)
		if err != nil {
			t.failed(err)
			return
		}
		ready[i] = present
	})
	if err := ended(ctx); err != nil {
		return fmt.Errorf("look up %d blocks: %w", len(keys), err)
	}
	for i, key := range keys {
		states[i] = tier.Absent
		for _, present := range ready {
			if present[key] {
				states[i] = tier.Ready
			}
		}
	}
	return nil
}

// exist returns the blocks of a group that its server has.
func (t *Tier) exist(ctx context.Context, g *group) (map[block.Key]bool, error) {
	out := make([]blockio.Presence, len(g.entries))
	err := g.s.call(ctx, t.c.Timeout, func(ctx context.Context) error { return g.s.client.Exist(ctx, g.entries, out) })
	if err != nil {
		return nil, err
	}
	present := make(map[block.Key]bool, len(out))
	for i := range out {
		present[g.entries[i].Key] = out[i].Present
	}
	return present, nil
}

// Get reads and verifies a block. A server that is slow or gone causes ErrNotFound.
func (t *Tier) Get(ctx context.Context, key block.Key, dst mem.Extent) error {
	return t.get(ctx, key, dst, t.c.Formats.Verify)
}

// Read reads a block like Get, but does not verify the shards with the checksums of the header. The
// checksums of the transfer are verified.
func (t *Tier) Read(ctx context.Context, key block.Key, dst mem.Extent) error {
	return t.get(ctx, key, dst, t.c.Formats.VerifyHeader)
}

func (t *Tier) get(ctx context.Context, key block.Key, dst mem.Extent, verify func([]byte, block.Key) error) error {
	buf, err := blockdir.Image(t.c.Formats, key, dst)
	if err != nil {
		return fmt.Errorf("read block %s: %w", key, err)
	}
	if err := t.ops.BeginOp(ctx); err != nil {
		return fmt.Errorf("read block %s: %w", key, err)
	}
	defer t.ops.EndOp()
	s := t.place(key)
	err = s.call(ctx, t.c.Timeout, func(ctx context.Context) error { return t.transfer(ctx, s.client.Retrieve, key, dst) })
	if err == nil {
		if err = verify(buf, key); err != nil && !errors.Is(err, errdefs.ErrCorrupt) {
			err = fmt.Errorf("%w: %w", errdefs.ErrCorrupt, err)
		}
	}
	switch {
	case err == nil:
		t.hits.Add(1)
		t.readBytes.Add(int64(len(buf)))
		return nil
	case errors.Is(err, errdefs.ErrCorrupt):
		t.corrupt.Add(1)
		err = errors.Join(err, t.remove(ctx, s, key)) // the server verified it when it was stored
	case errors.Is(err, tier.ErrUnavailable), errors.Is(err, errdefs.ErrBusy):
		t.failed(err)
		err = fmt.Errorf("%w: %v", errdefs.ErrNotFound, err) //nolint:errorlint // it is a miss
	case !errors.Is(err, errdefs.ErrNotFound):
		t.errors.Add(1)
		return fmt.Errorf("read block %s: %w", key, err)
	}
	t.misses.Add(1)
	return fmt.Errorf("read block %s: %w", key, err)
}

// transfer stores or retrieves a whole image.
func (t *Tier) transfer(ctx context.Context, move func(context.Context, []blockio.Piece, []error), key block.Key, m mem.Extent) error {
	f, err := t.c.Formats.Of(key)
	if err != nil {
		return err
	}
	pieces := blockio.Split(nil, key, f.Identity, f.Layout, m, blockio.MaxEntryBytes)
	errs := make([]error, len(pieces))
	move(ctx, pieces, errs)
	for _, err := range errs {
		if err != nil && !answered(err) {
			return err
		}
	}
	return errors.Join(errs...)
}

// Put stores a block at its server. It returns ErrBusy at once if Config.Writes Puts are in
// progress. If the server is slow, full or gone, the error wraps tier.ErrUnavailable.
func (t *Tier) Put(ctx context.Context, key block.Key, src mem.Extent) error {
	return t.putAfter(ctx, key, src, nil)
}

// putAfter is Put after a lookup with the result known. Keys that are not in it are looked up.
func (t *Tier) putAfter(ctx context.Context, key block.Key, src mem.Extent, known map[block.Key]bool) error {
	if err := t.put(ctx, key, src, known); err != nil {
		return fmt.Errorf("store block %s: %w", key, err)
	}
	return nil
}

func (t *Tier) put(ctx context.Context, key block.Key, src mem.Extent, known map[block.Key]bool) error {
	buf, err := blockdir.Image(t.c.Formats, key, src)
	if err != nil {
		return err
	}
	if err := t.ops.BeginOp(ctx); err != nil {
		return err
	}
	defer t.ops.EndOp()
	select {
	case t.writes <- struct{}{}:
		defer func() { <-t.writes }()
	default:
		t.dropped.Add(1)
		return fmt.Errorf("%d writes are in progress: %w: %w", cap(t.writes), errdefs.ErrBusy, tier.ErrUnavailable)
	}
	if err := t.c.Formats.Verify(buf, key); err != nil {
		return err
	}
	if err := t.locks.Lock(ctx, nil, key, usage.Writing); err != nil {
		return err
	}
	defer t.locks.Unlock(key)
	g := t.group([]block.Key{key})[0]
	present, ok := known[key]
	if !ok {
		known, err = t.exist(ctx, g)
		present = known[key]
	}
	if err == nil && !present {
		err = g.s.call(ctx, t.c.Timeout, func(ctx context.Context) error { return t.transfer(ctx, g.s.client.Store, key, src) })
		if errors.Is(err, errdefs.ErrExists) {
			err = nil // another process stored it
		}
		if err == nil {
			t.puts.Add(1)
			t.writtenBytes.Add(int64(len(buf)))
		}
	}
	if err != nil && ctx.Err() == nil {
		t.failed(err)
		t.errors.Add(1)
		if errors.Is(err, errdefs.ErrNoSpace) || errors.Is(err, errdefs.ErrBusy) {
			err = fmt.Errorf("%w: %w", tier.ErrUnavailable, err)
		}
	}
	return err
}

// PutMany stores blocks concurrently. It asks each server once for the blocks that it has already.
func (t *Tier) PutMany(ctx context.Context, keys []block.Key, srcs []mem.Extent, errs []error) {
	if len(keys) != len(srcs) || len(keys) != len(errs) {
		for i := range errs {
			errs[i] = fmt.Errorf("store %d blocks of %d images: %w", len(keys), len(srcs), errdefs.ErrInvalid)
		}
		return
	}
	known := t.existing(ctx, keys)
	const most = 16
	var wg sync.WaitGroup
	for first := range min(most, len(keys)) {
		wg.Go(func() {
			for i := first; i < len(keys); i += most {
				errs[i] = t.putAfter(ctx, keys[i], srcs[i], known)
			}
		})
	}
	wg.Wait()
}

// existing reports for each key whether its server has the block. Keys of servers that do not
// answer are left out.
func (t *Tier) existing(ctx context.Context, keys []block.Key) map[block.Key]bool {
	known := make(map[block.Key]bool, len(keys))
	if t.ops.BeginOp(ctx) != nil {
		return known
	}
	defer t.ops.EndOp()
	var mu sync.Mutex
	groups := t.group(keys)
	t.each(groups, func(i int, g *group) {
		present, err := t.exist(ctx, g)
		t.failed(err)
		mu.Lock()
		defer mu.Unlock()
		maps.Copy(known, present)
	})
	return known
}

// Delete deletes a block at its server. It fails if the server is slow or gone.
func (t *Tier) Delete(ctx context.Context, key block.Key) error {
	if err := t.ops.BeginOp(ctx); err != nil {
		return fmt.Errorf("delete block %s: %w", key, err)
	}
	defer t.ops.EndOp()
	t.mu.Lock()
	pinned := len(t.pins[key]) > 0
	t.mu.Unlock()
	if pinned {
		return fmt.Errorf("delete block %s: it is retained: %w", key, errdefs.ErrBusy)
	}
	if err := t.remove(ctx, t.place(key), key); err != nil {
		return fmt.Errorf("delete block %s: %w", key, err)
	}
	return nil
}

func (t *Tier) remove(ctx context.Context, s *server, key block.Key) error {
	f, err := t.c.Formats.Of(key)
	if err != nil {
		return err
	}
	return s.call(ctx, t.c.Timeout, func(ctx context.Context) error {
		s.waitReleases(ctx)
		var errs [1]error
		s.client.Delete(ctx, []blockio.KeyEntry{{Key: key, Identity: blockio.IdentityHash(f.Identity)}}, errs[:])
		return errs[0]
	})
}

// statTimeout bounds the time for figures of servers.
const statTimeout = 250 * time.Millisecond

// Stats returns the counters, with the blocks and bytes of the tenant in all servers. It asks the
// servers, for at most 250 ms, and else returns their last figures.
func (t *Tier) Stats() tier.Stats {
	if t.ops.BeginOp(context.Background()) == nil {
		defer t.ops.EndOp()
		var wg sync.WaitGroup
		for _, s := range t.servers {
			wg.Go(func() { _ = s.stat(context.Background(), min(statTimeout, t.c.Timeout)) })
		}
		wg.Wait()
	}
	st := tier.Stats{
		Hits: t.hits.Load(), Misses: t.misses.Load(), Puts: t.puts.Load(), Corrupt: t.corrupt.Load(), Errors: t.errors.Load(),
		ReadBytes: t.readBytes.Load(), WrittenBytes: t.writtenBytes.Load(),
	}
	for _, s := range t.servers {
		s.mu.Lock()
		st.Blocks += int64(s.figures.Blocks)
		st.Bytes += int64(s.figures.Bytes)
		st.CapacityBytes += int64(s.figures.CapacityBytes)
		if s.last != nil {
			st.Failure = fmt.Errorf("block server %s: %w", s.address, s.last)
		}
		s.mu.Unlock()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	st.Retained = t.retained
	return st
}

// PeerStats has the figures of the tier that tier.Stats does not have.
type PeerStats struct {
	Unavailable int64 // requests that found a server slow or gone, or were refused by its breaker
	Dropped     int64 // Puts beyond Config.Writes
	Unanchored  int64 // blocks that were placed by their own key
	LostLeases  int64 // leases that ended at the server before Release
	Servers     []ServerStats
}

// PeerStats returns the figures of the servers. It does not ask them.
func (t *Tier) PeerStats() PeerStats {
	st := PeerStats{Unavailable: t.unavailable.Load(), Dropped: t.dropped.Load(), Unanchored: t.unanchored.Load(), LostLeases: t.lost.Load()}
	for _, s := range t.servers {
		st.Servers = append(st.Servers, s.stats())
	}
	return st
}

// Close waits for running operations and closes the connections.
func (t *Tier) Close(ctx context.Context) error {
	t.ops.Close()
	err := t.ops.Release(ctx, nil, func() error {
		var errs []error
		for _, s := range t.servers {
			errs = append(errs, s.client.Close(ctx))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return fmt.Errorf("close remote tier: %w", err)
	}
	return nil
}
