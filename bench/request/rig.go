package request

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/settings"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/replay/kvcache"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier/file"
)

// pageSet is a set of pages and their contents. The pages of a block of tokens in all page groups
// are adjacent.
type pageSet struct {
	pages []uint32
	seeds []uint64
	keys  []kvlane.Key // keys of the blocks to load; nil for source pages of dumps
}

// of returns the pages and seeds of the first n blocks in one page group.
func (s *pageSet) of(group, groups, n int) (pages []uint32, seeds []uint64) {
	for i := group; i < n*groups; i += groups {
		pages, seeds = append(pages, s.pages[i]), append(seeds, s.seeds[i])
	}
	return pages, seeds
}

// rig is an engine for one geometry. Its store has the blocks to load.
type rig struct {
	o        *Options
	geometry Geometry
	engine   *kvlane.Engine
	dir      string          // directory of the file tier; empty: none
	blocks   []kvlane.Blocks // by page group, like the next two
	caches   []*kvcache.Cache
	painters []*kvcache.Painter
	pages    *kvlane.Cache // pages of all page groups, registered with the engine
	raw      stream.EventStream
	host     *mem.Region // memory for the large copy, and slots for the stream without a store
	large    *large
	loads    pageSet
	dumps    pageSet
	most     int // maximum number of blocks of a repetition in each direction

	fresh      atomic.Uint64 // number of created keys
	poisoned   uint64
	mismatched []int64
	closers    []func(context.Context) error
}

func (r *rig) onClose(f func(context.Context) error) { r.closers = append(r.closers, f) }

// close releases resources in reverse order. It stops at the first failure, because the others may
// still be in use.
func (r *rig) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	for len(r.closers) > 0 {
		last := len(r.closers) - 1
		if err := r.closers[last](ctx); err != nil {
			return err
		}
		r.closers = r.closers[:last]
	}
	return nil
}

// cacheBytes returns the minimum cache size for the loads and dumps. Leases may use at most five
// eighths of the slots, and dumped blocks are also in the cache.
func (r *rig) cacheBytes(loads, dumps bool) int64 {
	slots := 4
	if loads {
		slots += r.most * 8 / 5
	}
	if dumps {
		slots = max(slots, 2*r.most+4)
	}
	image := int64(0)
	for _, b := range r.blocks {
		image = max(image, b.Layout.ImageBytes())
	}
	return int64(slots*len(r.blocks)) * image
}

// newRig opens an engine with space for most blocks in each direction.
func newRig(ctx context.Context, o *Options, g Geometry, most int) (_ *rig, err error) {
	r := &rig{o: o, geometry: g, most: most}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if r.blocks, err = g.blocks(); err != nil {
		return nil, err
	}
	if o.Dir != "" {
		if r.dir, err = os.MkdirTemp(o.Dir, "kvlane-bench-"); err != nil {
			return nil, fmt.Errorf("make a directory for blocks: %w", err)
		}
		dir := r.dir
		r.onClose(func(context.Context) error { return os.RemoveAll(dir) })
	}
	loads := slices.Contains(o.Work, Load) || slices.Contains(o.Work, Both)
	dumps := slices.Contains(o.Work, Dump) || slices.Contains(o.Work, Both)
	if r.engine, err = o.Open(ctx, r.config(r.cacheBytes(loads, dumps))); err != nil {
		return nil, err
	}
	r.onClose(r.engine.Close)
	if err := r.allocate(ctx, loads, dumps); err != nil {
		return nil, err
	}
	if loads {
		if err := r.prime(ctx); err != nil {
			return nil, fmt.Errorf("fill the store: %w", err)
		}
	}
	return r, nil
}

// lower returns the name of the tier below the cache.
func (r *rig) lower() string {
	tiers, err := settings.ParsePipeline(r.o.Engine.Store.Pipeline)
	if err != nil { // no valid pipeline
		return file.Name
	}
	return tiers[len(tiers)-1]
}

// config returns the configuration of the engine.
func (r *rig) config(cacheBytes int64) kvlane.Config {
	c := r.o.Engine
	if r.o.cached() {
		c.Store.CacheBytes = max(c.Store.CacheBytes, cacheBytes)
	}
	if r.dir != "" {
		settings.TierByName(r.lower()).SetDir(&c.Store, r.dir)
	}
	for i := range r.blocks {
		b, g := &r.blocks[i], &r.geometry.Groups[i]
		if g.Name == "" {
			c.Blocks = b
			break
		}
		c.Groups = append(c.Groups, kvlane.Group{Name: g.Name, Layers: g.Layers, Blocks: b})
	}
	return c
}

// allocate allocates the KV cache and the memory for reference copies, and opens their stream.
func (r *rig) allocate(ctx context.Context, loads, dumps bool) (err error) {
	dev, pages := r.engine.Device(), 0
	for _, used := range []bool{loads, dumps} {
		if used {
			pages += r.most
		}
	}
	images := int64(0)
	var memory []kvlane.CacheMemory
	for k, b := range r.blocks {
		m, err := r.allocateGroup(k, pages)
		if err != nil {
			return err
		}
		memory = append(memory, m)
		images += b.Layout.ImageBytes()
	}
	if r.pages, err = r.engine.RegisterCache(memory...); err != nil {
		return err
	}
	r.onClose(r.pages.Close)
	if r.host, err = dev.AllocHost(max(int64(r.most)*images, 2*r.o.LargeBytes)); err != nil {
		return fmt.Errorf("allocate pinned memory for copies beside the store: %w", err)
	}
	r.onClose(func(context.Context) error { return dev.Free(r.host) })
	if r.raw, err = r.engine.OpenStream(); err != nil {
		return err
	}
	r.onClose(r.raw.Close)
	if r.large, err = newLarge(r); err != nil {
		return err
	}
	r.mismatched = make([]int64, r.most)
	for i, set := range []*pageSet{&r.loads, &r.dumps} {
		if i == 0 && !loads || i == 1 && !dumps {
			continue
		}
		if err := r.paint(ctx, set, i); err != nil {
			return err
		}
	}
	return nil
}

// allocateGroup allocates the KV cache of a page group and its painter.
func (r *rig) allocateGroup(k, pages int) (m kvlane.CacheMemory, err error) {
	c, err := kvcache.New(r.engine.Device(), r.blocks[k].Layout, r.geometry.Groups[k].Planes, pages, r.o.Seed+uint64(k))
	if err != nil {
		return m, err
	}
	r.caches = append(r.caches, c)
	r.onClose(func(context.Context) error { return c.Close() })
	p, err := kvcache.NewPainter(c, r.most)
	if err != nil {
		return m, err
	}
	r.painters = append(r.painters, p)
	r.onClose(p.Close)
	m = kvlane.CacheMemory{Pages: pages, PageBytes: c.Planes()[0].Bytes, Stride: c.Planes()[0].Stride}
	for i := range c.Planes() {
		m.Planes = append(m.Planes, c.Planes()[i].Page(0).Dev())
	}
	return m, nil
}

// paint allocates the pages of a set and fills them with a pattern.
func (r *rig) paint(ctx context.Context, set *pageSet, number int) error {
	groups := len(r.caches)
	set.pages = make([]uint32, r.most*groups)
	for k, c := range r.caches {
		pages, err := c.Take(ctx, nil, r.most)
		if err != nil {
			return err
		}
		for i, page := range pages {
			set.pages[i*groups+k] = page
		}
	}
	for i := range set.pages {
		set.seeds = append(set.seeds, kvcache.ContentSeed(int64(number)<<32+int64(i)))
	}
	return r.fill(ctx, set, r.most)
}

// fill writes the contents of the first n blocks of a set to their pages.
func (r *rig) fill(ctx context.Context, set *pageSet, n int) error {
	if r.o.still() {
		return nil
	}
	for k, p := range r.painters {
		pages, seeds := set.of(k, len(r.caches), n)
		if err := p.Fill(ctx, r.caches[k].All(), pages, seeds); err != nil {
			return err
		}
	}
	return nil
}

// prime dumps the blocks to load.
func (r *rig) prime(ctx context.Context) error {
	set := &r.loads
	var err error
	if set.keys, err = r.newKeys(r.most); err != nil {
		return err
	}
	l := lane{rig: r, work: Dump, refs: refsOf(set.keys, set.pages)}
	return l.run(ctx, time.Now())
}

// newKeys returns unused keys for n blocks of tokens in all page groups.
func (r *rig) newKeys(n int) ([]kvlane.Key, error) {
	keys := make([]kvlane.Key, 0, n*len(r.caches))
	var hash [8]byte
	for range n {
		binary.LittleEndian.PutUint64(hash[:], r.fresh.Add(1))
		for k := range r.caches {
			key, err := r.engine.GroupKey(k, hash[:])
			if err != nil {
				return nil, err
			}
			keys = append(keys, key)
		}
	}
	return keys, nil
}

func refsOf(keys []kvlane.Key, pages []uint32) []kvlane.Ref {
	refs := make([]kvlane.Ref, len(keys))
	for i := range refs {
		refs[i] = kvlane.Ref{Key: keys[i], Page: pages[i]}
	}
	return refs
}

// poison overwrites the pages of the first n blocks of a set.
func (r *rig) poison(ctx context.Context, set *pageSet, n int) error {
	other := pageSet{pages: set.pages, seeds: make([]uint64, n*len(r.caches))}
	for i := range other.seeds {
		r.poisoned++
		other.seeds[i] = kvcache.PoisonSeed(r.poisoned)
	}
	return r.fill(ctx, &other, n)
}

// check compares the pages of the first n blocks of a set with their expected contents. It returns
// ErrCorrupt if they differ.
func (r *rig) check(ctx context.Context, set *pageSet, n int) error {
	if r.o.still() {
		return nil
	}
	for k := range r.caches {
		if err := r.checkGroup(ctx, set, n, k); err != nil {
			return err
		}
	}
	return nil
}

func (r *rig) checkGroup(ctx context.Context, set *pageSet, n, group int) error {
	mismatched, p := r.mismatched[:n], r.painters[group]
	clear(mismatched)
	pages, seeds := set.of(group, len(r.caches), n)
	if err := p.Check(ctx, r.caches[group].All(), pages, seeds, mismatched); err != nil {
		return err
	}
	for i, bytes := range mismatched {
		if bytes == 0 {
			continue
		}
		plane, off, err := p.Locate(ctx, pages[i], seeds[i])
		return errors.Join(fmt.Errorf("block %d of %d in page group %d has %d wrong bytes, the first in plane %d at %d: %w",
			i, n, group, bytes, plane, off, errdefs.ErrCorrupt), err)
	}
	return nil
}

// forget removes blocks from the first most tiers of the pipeline.
func (r *rig) forget(ctx context.Context, refs []kvlane.Ref, most int) error {
	for i, t := range r.engine.Tiers() {
		if i >= most {
			break
		}
		for k := range refs {
			if err := retry(ctx, func() error { return t.Delete(ctx, refs[k].Key) }); err != nil {
				return fmt.Errorf("remove a block from tier %s: %w", t.Name(), err)
			}
		}
	}
	return nil
}

const allTiers = math.MaxInt

// retry calls f until it does not return ErrBusy. A lease or a write to a lower tier may release a
// block shortly after it has ended.
func retry(ctx context.Context, f func() error) error {
	for end := time.Now().Add(patience); ; {
		err := f()
		switch {
		case err == nil || errors.Is(err, errdefs.ErrNotFound):
			return nil
		case !errors.Is(err, errdefs.ErrBusy) || time.Now().After(end):
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Millisecond):
		}
	}
}
