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

// pageSet is pages with what they hold, or will hold.
type pageSet struct {
	pages []uint32
	seeds []uint64
	keys  []block.Key // of the blocks that loads ask for; nil for pages that dumps read
}

// rig is an engine of one geometry, with a store that has what loads ask for.
type rig struct {
	o        *Options
	geometry Geometry
	layout   *block.Layout
	engine   Engine
	digest   block.Digest
	dir      string // of the file tier; empty: there is none
	cache    *kvcache.Cache
	painter  *kvcache.Painter
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
	return int64(slots) * r.layout.ImageBytes()
}

// newRig opens an engine with room for most blocks each way.
func newRig(ctx context.Context, open Opener, o *Options, g Geometry, most int) (_ *rig, err error) {
	r := &rig{o: o, geometry: g, most: most}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if r.layout, err = g.layout(); err != nil {
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
	n := Needs{Identity: g.Identity(), Layout: r.layout, CacheBytes: max(o.CacheBytes, r.cacheBytes(loads, dumps)), Dir: r.dir}
	if r.engine, err = open(ctx, n); err != nil {
		return nil, err
	}
	r.onClose(r.engine.Close)
	r.digest = n.Identity.Digest()
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
	if r.cache, err = kvcache.New(dev, r.layout, r.geometry.Planes, pages, r.o.Seed); err != nil {
		return err
	}
	r.onClose(func(context.Context) error { return r.cache.Close() })
	if r.host, err = dev.AllocHost(max(int64(r.most)*r.layout.ImageBytes(), 2*r.o.LargeBytes)); err != nil {
		return fmt.Errorf("allocate pinned memory for copies beside the store: %w", err)
	}
	r.onClose(func(context.Context) error { return dev.Free(r.host) })
	if err := r.engine.Register(r.cache.Region(), r.host); err != nil {
		return err
	}
	r.onClose(func(ctx context.Context) error { return r.engine.Unregister(ctx, r.cache.Region(), r.host) })
	if r.painter, err = kvcache.NewPainter(r.cache, r.most); err != nil {
		return err
	}
	r.onClose(r.painter.Close)
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

// paint takes pages for a set and fills them.
func (r *rig) paint(ctx context.Context, set *pageSet, number int) (err error) {
	if set.pages, err = r.cache.Take(ctx, nil, r.most); err != nil {
		return err
	}
	for i := range r.most {
		set.seeds = append(set.seeds, kvcache.ContentSeed(int64(number)<<32+int64(i)))
	}
	if r.o.Still {
		return nil
	}
	return r.painter.Fill(ctx, r.cache.All(), set.pages, set.seeds)
}

// prime dumps what loads will ask for.
func (r *rig) prime(ctx context.Context) error {
	set := &r.loads
	set.keys = r.newKeys(nil, r.most)
	l := lane{rig: r, work: Dump, refs: refsOf(set.keys, set.pages)}
	return l.run(ctx, time.Now())
}

// newKeys appends n keys that no block has.
func (r *rig) newKeys(keys []block.Key, n int) []block.Key {
	var hash [8]byte
	for range n {
		binary.LittleEndian.PutUint64(hash[:], r.fresh.Add(1))
		keys = append(keys, r.digest.Key(hash[:]))
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

// poison overwrites the first n pages of a set.
func (r *rig) poison(ctx context.Context, set *pageSet, n int) error {
	if r.o.Still {
		return nil
	}
	seeds := make([]uint64, n)
	for i := range seeds {
		r.poisoned++
		seeds[i] = kvcache.PoisonSeed(r.poisoned)
	}
	return r.painter.Fill(ctx, r.cache.All(), set.pages[:n], seeds)
}

// check compares the first n pages of a set with what they must hold. Wrong bytes are ErrCorrupt.
func (r *rig) check(ctx context.Context, set *pageSet, n int) error {
	if r.o.Still {
		return nil
	}
	wrong := r.wrong[:n]
	clear(wrong)
	if err := r.painter.Check(ctx, r.cache.All(), set.pages[:n], set.seeds[:n], wrong); err != nil {
		return err
	}
	for i, bytes := range wrong {
		if bytes == 0 {
			continue
		}
		plane, off, err := r.painter.Locate(ctx, set.pages[i], set.seeds[i])
		return errors.Join(fmt.Errorf("block %d of %d has %d wrong bytes, the first in plane %d at %d: %w", i, n, bytes, plane, off, errdefs.ErrCorrupt), err)
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
