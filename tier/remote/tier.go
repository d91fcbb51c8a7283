package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/internal/usage"
)

// Tier stores blocks in block servers. All methods are safe for concurrent use.
type Tier struct {
	c       Config
	opened  io.Closer // the list of members, if Open opened it
	pool    *pool
	notes   []string
	ops     usage.OpCounter
	locks   *usage.KeyLocks // of Puts
	anchors atomic.Pointer[tier.Anchors]
	writes  chan struct{} // an element for each Put or fill in progress

	mu       sync.Mutex
	pins     map[block.Key][]*lease
	retained int64

	hits, misses, puts, corrupt, errors, readBytes, writtenBytes, unavailable, dropped, unanchored, lost, filled atomic.Int64
}

var (
	_ tier.Placed     = (*Tier)(nil)
	_ tier.Reader     = (*Tier)(nil)
	_ tier.ManyPutter = (*Tier)(nil)
	_ tier.Statter    = (*Tier)(nil)
)

// servers returns the present servers.
func (t *Tier) servers() []*server { return t.pool.get(t.c.Clock.Now()).servers }

// Name returns Name.
func (t *Tier) Name() string { return Name }

// Notes returns a text for each server that could not be reached by Open.
func (t *Tier) Notes() []string { return t.notes }

// SetAnchors implements tier.Placed.
func (t *Tier) SetAnchors(a *tier.Anchors) { t.anchors.Store(a) }

// route returns the route of a block. A block without an anchor is placed by its own key.
func (t *Tier) route(key block.Key) *route { return t.pool.route(t.anchor(key), t.c.Clock.Now()) }

func (t *Tier) anchor(key block.Key) block.Key {
	anchor, ok := t.anchors.Load().Of(key)
	if !ok {
		t.unanchored.Add(1)
		anchor = key
	}
	return t.c.Formats.Untagged(anchor)
}

// failed counts a request to a server that is slow or gone.
func (t *Tier) failed(err error) {
	if errors.Is(err, tier.ErrUnavailable) {
		t.unavailable.Add(1)
	}
}

// Lookup asks each server once, and servers that may have blocks that the first ones miss: replicas
// of hot runs, and servers that join or leave. Blocks of servers that are slow or gone are Absent.
func (t *Tier) Lookup(ctx context.Context, keys []block.Key, states []tier.State) error {
	if len(keys) != len(states) {
		return fmt.Errorf("look up %d blocks with space for %d states: %w", len(keys), len(states), errdefs.ErrInvalid)
	}
	if err := t.ops.BeginOp(ctx); err != nil {
		return fmt.Errorf("look up %d blocks: %w", len(keys), err)
	}
	defer t.ops.EndOp()
	present := make(map[block.Key]bool, len(keys))
	t.ask(ctx, t.questions(keys, (*route).reading), t.exist, func(e blockio.KeyEntry, _ *group) { present[e.Key] = true })
	if err := ended(ctx); err != nil {
		return fmt.Errorf("look up %d blocks: %w", len(keys), err)
	}
	for i, key := range keys {
		states[i] = tier.Absent
		if present[key] {
			states[i] = tier.Ready
		}
	}
	return nil
}

// exist asks the server of a group for its blocks.
func (t *Tier) exist(ctx context.Context, g *group) error {
	out := make([]blockio.Presence, len(g.entries))
	err := g.s.call(ctx, t.c.Timeout, func(ctx context.Context) error { return g.s.client.Exist(g.number(ctx), g.entries, out) })
	if err != nil {
		return err
	}
	for i := range out {
		g.found[i] = out[i].Present
	}
	return nil
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
	servers, leased, missed := t.sources(key)
	var errs []error
	if len(servers.reads) == 0 {
		t.failed(errNoServers)
		errs = append(errs, fmt.Errorf("%w: %v", errdefs.ErrNotFound, errNoServers)) //nolint:errorlint // it is a miss
	}
	for _, s := range servers.reads {
		call := s.call
		if s == leased {
			call = s.callLeased
		}
		err := call(ctx, t.c.Timeout, func(ctx context.Context) error {
			return t.transfer(servers.number(ctx), s.client.Retrieve, key, dst)
		})
		if err == nil {
			if err = verify(buf, key); err != nil && !errors.Is(err, errdefs.ErrCorrupt) {
				err = fmt.Errorf("%w: %w", errdefs.ErrCorrupt, err)
			}
		}
		switch {
		case err == nil:
			t.hits.Add(1)
			t.readBytes.Add(int64(len(buf)))
			if missed != nil && missed != s {
				t.fill(ctx, missed, key, dst)
			}
			return nil
		case errors.Is(err, errdefs.ErrCorrupt):
			t.corrupt.Add(1)
			t.c.Events.Removed(Name, key)
			err = errors.Join(err, t.remove(ctx, s, key)) // the server verified it when it was stored
		case errors.Is(err, tier.ErrUnavailable), errors.Is(err, errdefs.ErrBusy):
			t.failed(err)
			err = fmt.Errorf("%w: %v", errdefs.ErrNotFound, err) //nolint:errorlint // it is a miss
		case !errors.Is(err, errdefs.ErrNotFound):
			t.errors.Add(1)
			return fmt.Errorf("read block %s: %w", key, err)
		case missed == nil:
			missed = s
		}
		errs = append(errs, err)
	}
	t.misses.Add(1)
	return fmt.Errorf("read block %s: %w", key, errors.Join(errs...))
}

// sources returns the route of a block to read. The first server is that of a pin, leased, or nil
// without one. missed is a server that should have the block and does not, or nil.
func (t *Tier) sources(key block.Key) (r *route, leased, missed *server) {
	r = t.route(key)
	t.mu.Lock()
	defer t.mu.Unlock()
	if pins := t.pins[key]; len(pins) > 0 {
		l := pins[len(pins)-1]
		first := []*server{l.s}
		for _, s := range r.reads {
			if s != l.s {
				first = append(first, s)
			}
		}
		r.reads, leased, missed = first, l.s, l.missed
	}
	return r, leased, missed
}

// fill stores a block at a server that missed it. The block is at another server: errors of fill
// cause no miss, so that they are only counted.
func (t *Tier) fill(ctx context.Context, s *server, key block.Key, src mem.Extent) {
	select {
	case t.writes <- struct{}{}:
		defer func() { <-t.writes }()
	default:
		return
	}
	f, err := t.c.Formats.Of(key)
	if err != nil {
		return
	}
	g := &group{s: s, entries: []blockio.KeyEntry{{Key: key, Identity: blockio.IdentityHash(f.Identity)}}, found: make([]bool, 1)}
	if err = t.exist(ctx, g); err != nil || g.found[0] {
		return
	}
	if err = t.store(ctx, s, key, src); err == nil {
		t.filled.Add(1)
	}
	t.failed(err)
}

// store stores a block at a server; nil: none is known. Another process may have stored it.
func (t *Tier) store(ctx context.Context, s *server, key block.Key, src mem.Extent) error {
	if s == nil {
		return errNoServers
	}
	err := s.call(ctx, t.c.Timeout, func(ctx context.Context) error { return t.transfer(ctx, s.client.Store, key, src) })
	if errors.Is(err, errdefs.ErrExists) {
		return nil
	}
	return err
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
	present, ok := known[key]
	if !ok {
		present, err = t.written(ctx, key)
	}
	if err == nil && !present {
		if err = t.store(ctx, t.route(key).write, key, src); err == nil {
			t.puts.Add(1)
			t.writtenBytes.Add(int64(len(buf)))
		}
	}
	if err == nil {
		t.c.Events.Stored(Name, key)
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
	known := make(map[block.Key]bool, len(keys))
	if t.ops.BeginOp(ctx) == nil {
		t.ask(ctx, t.questions(keys, (*route).writing), t.existing(known), func(blockio.KeyEntry, *group) {})
		t.ops.EndOp()
	}
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

// existing returns exist, which also sets known for the keys of servers that answer.
func (t *Tier) existing(known map[block.Key]bool) func(context.Context, *group) error {
	var mu sync.Mutex
	return func(ctx context.Context, g *group) error {
		err := t.exist(ctx, g)
		mu.Lock()
		defer mu.Unlock()
		for i := 0; err == nil && i < len(g.entries); i++ {
			known[g.entries[i].Key] = g.found[i]
		}
		return err
	}
}

// written reports whether the server that gets a new block has it already.
func (t *Tier) written(ctx context.Context, key block.Key) (present bool, err error) {
	t.ask(ctx, t.questions([]block.Key{key}, (*route).writing), func(ctx context.Context, g *group) error {
		err = t.exist(ctx, g)
		return err
	}, func(blockio.KeyEntry, *group) { present = true })
	return present, err
}

// Delete deletes a block at the servers that may have it. It fails if one of them is slow or gone.
// Replicas of a run that is hot no more may stay.
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
	deleted := false
	var missing error
	var errs []error
	all := t.route(key).all
	if len(all) == 0 {
		missing = errNoServers
	}
	for _, s := range all {
		switch err := t.remove(ctx, s, key); {
		case err == nil:
			deleted = true
		case errors.Is(err, errdefs.ErrNotFound):
			missing = err
		default:
			errs = append(errs, err)
		}
	}
	if deleted {
		t.c.Events.Removed(Name, key)
	} else {
		errs = append(errs, missing)
	}
	if err := errors.Join(errs...); err != nil {
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
		for _, s := range t.servers() {
			wg.Go(func() { _ = s.stat(context.Background(), min(statTimeout, t.c.Timeout)) })
		}
		wg.Wait()
	}
	st := tier.Stats{
		Hits: t.hits.Load(), Misses: t.misses.Load(), Puts: t.puts.Load(), Corrupt: t.corrupt.Load(), Errors: t.errors.Load(),
		ReadBytes: t.readBytes.Load(), WrittenBytes: t.writtenBytes.Load(),
	}
	servers := t.servers()
	if len(servers) == 0 {
		st.Failure = fmt.Errorf("%w: %w", errNoServers, t.pool.listErr())
	}
	for _, s := range servers {
		s.mu.Lock()
		st.Blocks += int64(s.figures.Blocks)
		st.Bytes += int64(s.figures.Bytes)
		st.CapacityBytes += int64(s.figures.CapacityBytes)
		st.Overrun = max(st.Overrun, time.Duration(s.overrun.Load()))
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
	Filled      int64 // blocks that were stored at a server that missed them, and another one had

	// List has the counters of the list of servers. They are zero for a list that never changes.
	List    metadata.ListStats
	Servers []ServerStats
}

// PeerStats returns the figures of the servers. It does not ask them.
func (t *Tier) PeerStats() PeerStats {
	st := PeerStats{Unavailable: t.unavailable.Load(), Dropped: t.dropped.Load(), Unanchored: t.unanchored.Load(), LostLeases: t.lost.Load(), Filled: t.filled.Load()}
	if m, ok := t.pool.members.(metadata.Counted); ok {
		st.List = m.ListStats()
	}
	for _, s := range t.servers() {
		st.Servers = append(st.Servers, s.stats())
	}
	return st
}

// Close waits for running operations and closes the connections.
func (t *Tier) Close(ctx context.Context) error {
	t.ops.Close()
	err := t.ops.Release(ctx, nil, func() error { return errors.Join(t.pool.closeAll(ctx), t.closeMembers()) })
	if err != nil {
		return fmt.Errorf("close remote tier: %w", err)
	}
	return nil
}

// closeMembers closes the list of members that Open opened.
func (t *Tier) closeMembers() error {
	if t.opened == nil {
		return nil
	}
	return t.opened.Close()
}
