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

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/replay/kvcache"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
)

// pageSet is pages with what they hold, or will hold: of each block of tokens those of all page groups in a row.
type pageSet struct {
	pages []uint32
	seeds []uint64
	keys  []block.Key // of the blocks that loads ask for; nil for pages that dumps read
}

// of returns the pages and seeds that the first n blocks have in a page group, of so many.
func (s *pageSet) of(group, groups, n int) (pages []uint32, seeds []uint64) {
	for i := group; i < n*groups; i += groups {
		pages, seeds = append(pages, s.pages[i]), append(seeds, s.seeds[i])
	}
	return pages, seeds
}

// rig is an engine of one geometry, with a store that has what loads ask for.
type rig struct {
	o        *Options
	geometry Geometry
	engine   Engine
	dir      string // of the file tier; empty: there is none
	pages    store.Pages
	blocks   []Blocks // by page group, as the next three
	formats  block.Formats
	caches   []*kvcache.Cache // apart from each other
	painters []*kvcache.Painter
	raw      stream.EventStream
	host     *mem.Region // of the large copy, and slots of what a bare stream copies
	large    *large
	loads    pageSet
	dumps    pageSet
	most     int // blocks of a repetition, each way

	fresh    atomic.Uint64 // keys given out
	poisoned uint64
	wrong    []int64
	closers  []func(context.Context) error
}

func (r *rig) onClose(f func(context.Context) error) { r.closers = append(r.closers, f) }

// close closes what was opened, backwards, and stops at what does not close: it may still use what is below.
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

// cacheBytes is the least that loads and dumps of so many blocks need: leases hold five eighths of the slots, and what is dumped
// lies beside what is loaded.
func (r *rig) cacheBytes(loads, dumps bool) int64 {
	slots := 4
	if loads {
		slots += r.most * 8 / 5
	}
	if dumps {
		slots = max(slots, 2*r.most+4)
	}
	return int64(slots*len(r.blocks)) * r.formats.MaxImageBytes()
}

// newRig opens an engine with room for most blocks each way.
func newRig(ctx context.Context, open Opener, o *Options, g Geometry, most int) (_ *rig, err error) {
	r := &rig{o: o, geometry: g, most: most}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if r.blocks, err = g.needs(); err != nil {
		return nil, err
	}
	for _, b := range r.blocks {
		r.formats = append(r.formats, block.Format{Layout: b.Layout, Identity: b.Identity.Digest()})
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
	n := Needs{Blocks: r.blocks, CacheBytes: max(o.CacheBytes, r.cacheBytes(loads, dumps)), Dir: r.dir}
	if r.engine, err = open(ctx, n); err != nil {
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

// allocate makes the KV cache and what else is copied, and opens what copies it beside the store.
func (r *rig) allocate(ctx context.Context, loads, dumps bool) (err error) {
	dev, pages := r.engine.Device(), 0
	for _, used := range []bool{loads, dumps} {
		if used {
			pages += r.most
		}
	}
	r.pages.Shards = make([][]mem.Plane, r.geometry.Shards())
	images := int64(0)
	for k, b := range r.blocks {
		if err := r.allocateGroup(k, pages); err != nil {
			return err
		}
		images += b.Layout.ImageBytes()
	}
	if r.host, err = dev.AllocHost(max(int64(r.most)*images, 2*r.o.LargeBytes)); err != nil {
		return fmt.Errorf("allocate pinned memory for copies beside the store: %w", err)
	}
	r.onClose(func(context.Context) error { return dev.Free(r.host) })
	if err := r.engine.Register(r.host); err != nil {
		return err
	}
	r.onClose(func(ctx context.Context) error { return r.engine.Unregister(ctx, r.host) })
	if r.raw, err = r.engine.OpenStream(); err != nil {
		return err
	}
	r.onClose(r.raw.Close)
	if r.large, err = newLarge(r); err != nil {
		return err
	}
	r.wrong = make([]int64, r.most)
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

// allocateGroup makes the KV cache of a page group, and what fills and checks it.
func (r *rig) allocateGroup(k, pages int) error {
	group := &r.geometry.Groups[k]
	c, err := kvcache.New(r.engine.Device(), r.blocks[k].Layout, group.Planes, pages, r.o.Seed+uint64(k))
	if err != nil {
		return err
	}
	r.caches = append(r.caches, c)
	r.onClose(func(context.Context) error { return c.Close() })
	if err := r.engine.Register(c.Region()); err != nil {
		return err
	}
	r.onClose(func(ctx context.Context) error { return r.engine.Unregister(ctx, c.Region()) })
	p, err := kvcache.NewPainter(c, r.most)
	if err != nil {
		return err
	}
	r.painters = append(r.painters, p)
	r.onClose(p.Close)
	for i, planes := range c.Pages().Shards {
		if group.Layers != nil {
			i = group.Layers[i]
		}
		r.pages.Shards[i] = planes
	}
	return nil
}

// paint takes pages for a set and fills them.
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

// fill writes what the first n blocks of a set hold to their pages.
func (r *rig) fill(ctx context.Context, set *pageSet, n int) error {
	if r.o.Still {
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

// prime dumps what loads will ask for.
func (r *rig) prime(ctx context.Context) error {
	set := &r.loads
	set.keys = r.newKeys(r.most)
	l := lane{rig: r, work: Dump, refs: refsOf(set.keys, set.pages)}
	return l.run(ctx, time.Now())
}

// newKeys returns the keys of n blocks of tokens that nobody has, in all page groups.
func (r *rig) newKeys(n int) []block.Key {
	keys := make([]block.Key, 0, n*len(r.caches))
	var hash [8]byte
	for range n {
		binary.LittleEndian.PutUint64(hash[:], r.fresh.Add(1))
		for k := range r.caches {
			keys = append(keys, r.formats.Key(k, hash[:]))
		}
	}
	return keys
}

func refsOf(keys []block.Key, pages []uint32) []store.Ref {
	refs := make([]store.Ref, len(keys))
	for i := range refs {
		refs[i] = store.Ref{Key: keys[i], Page: pages[i]}
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

// check compares the pages of the first n blocks of a set with what they must hold. Wrong bytes are ErrCorrupt.
func (r *rig) check(ctx context.Context, set *pageSet, n int) error {
	if r.o.Still {
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
	wrong, p := r.wrong[:n], r.painters[group]
	clear(wrong)
	pages, seeds := set.of(group, len(r.caches), n)
	if err := p.Check(ctx, r.caches[group].All(), pages, seeds, wrong); err != nil {
		return err
	}
	for i, bytes := range wrong {
		if bytes == 0 {
			continue
		}
		plane, off, err := p.Locate(ctx, pages[i], seeds[i])
		return errors.Join(fmt.Errorf("block %d of %d in page group %d has %d wrong bytes, the first in plane %d at %d: %w",
			i, n, group, bytes, plane, off, errdefs.ErrCorrupt), err)
	}
	return nil
}

// forget removes blocks from the first tiers of the pipeline, all of them where most is not less.
func (r *rig) forget(ctx context.Context, refs []store.Ref, most int) error {
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

// retry calls f until nothing holds the block any more: a lease, or a write below, may give it back a moment after it ended.
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
