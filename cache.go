package kvlane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/inuse"
	"github.com/kvlane/kvlane/internal/unwind"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
)

// CacheMemory describes the memory of the host program's paged KV cache, or of one page group, on
// the engine's device. A page holds one block, in as many planes as the block has parts.
type CacheMemory struct {
	// Planes are the addresses of page 0 in each plane, in the order of a block: layer by layer,
	// and K before V in each layer. If a layer has more planes, such as one for each head, K planes
	// come before V planes. With Config.Blocks the order is shard by shard. All shards have the
	// same number of planes, and all planes have pages of the same size.
	Planes []mem.DevAddr
	Pages  int // number of pages in each plane
	// PageBytes is the size of a page in one plane. Zero takes the size from the geometry; any
	// other value must equal it.
	PageBytes int64
	// Stride is the distance between the starts of neighbouring pages in a plane, in bytes. Zero is
	// PageBytes: pages are contiguous.
	Stride int64
}

// Cache is a registered paged KV cache. Engine.Load writes its pages, and Engine.Dump reads them.
// All methods are safe for concurrent use.
type Cache struct {
	engine  *Engine
	regions []*mem.Region
	pages   store.Pages
	uses    inuse.Set
}

// RegisterCache declares the memory of the host program's KV cache. Call it before loads and
// dumps: registering memory with NICs takes milliseconds. A hybrid model has one CacheMemory for
// each page group, in the order of Config.Groups. Groups may share memory if each part of it is a
// page of only one group at a time. The memory must stay allocated until Cache.Close.
//
// Errors: ErrInvalid with every problem of the memory, ErrExists if it overlaps registered memory,
// ErrClosed after the engine was closed. If the error reports that NICs could not release the
// memory, it must stay allocated until Engine.Close.
func (e *Engine) RegisterCache(memory ...CacheMemory) (*Cache, error) {
	c := &Cache{engine: e}
	err := e.usable()
	if err == nil {
		memory, err = e.groups.validateMemory(memory)
	}
	if err == nil {
		err = c.makeRegions(memory)
	}
	if err == nil {
		if err = e.Register(c.regions...); err != nil {
			err = c.undoRegister(err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("register KV cache: %w", err)
	}
	return c, nil
}

// undoRegister unregisters the regions of a failed registration. It returns cause, joined with the
// error if a region stays registered.
func (c *Cache) undoRegister(cause error) error {
	ctx, cancel := context.WithTimeout(context.Background(), unwind.Timeout)
	defer cancel()
	if err := c.engine.Unregister(ctx, c.regions...); err != nil {
		return fmt.Errorf("%w; the memory must stay until the engine is closed: %w", cause, err)
	}
	return cause
}

// validateMemory returns memory with defaults filled in, or an error with every problem.
func (g *groups) validateMemory(memory []CacheMemory) ([]CacheMemory, error) {
	if len(memory) != len(g.formats) {
		return nil, fmt.Errorf("memory of %d page groups is given, expected %d: %w", len(memory), len(g.formats), errdefs.ErrInvalid)
	}
	memory = slices.Clone(memory)
	var errs []error
	for i := range memory {
		m := &memory[i]
		if n := len(m.Planes) / g.formats[i].Layout.Shards(); n > 0 && m.PageBytes == 0 {
			m.PageBytes = g.formats[i].Layout.ShardBytes(0) / int64(n)
		}
		if m.Stride == 0 {
			m.Stride = m.PageBytes
		}
		if err := m.validate(g.formats[i].Layout); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", g.names[i], err))
		}
	}
	return memory, errors.Join(errs...)
}

// validate returns every problem of m, whose defaults are filled in.
func (m *CacheMemory) validate(layout *block.Layout) error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	shards := layout.Shards()
	n := len(m.Planes) / shards
	if n == 0 || len(m.Planes)%shards != 0 {
		bad("%d planes do not divide into the %d shards of a block", len(m.Planes), shards)
		n = 0
	}
	for i := 0; i < shards && n > 0; i++ {
		if want := layout.ShardBytes(i); want != int64(n)*m.PageBytes {
			bad("shard %d of a block has %d bytes, and %d planes with pages of %d bytes do not", i, want, n, m.PageBytes)
			break
		}
	}
	switch {
	case m.Pages <= 0 || m.Pages > math.MaxUint32:
		bad("%d pages are not 1 to %d", m.Pages, uint32(math.MaxUint32))
	case m.PageBytes <= 0 || m.Stride < m.PageBytes:
		bad("pages of %d bytes do not fit a stride of %d", m.PageBytes, m.Stride)
	case m.Stride > math.MaxInt64/int64(m.Pages):
		bad("%d pages with a stride of %d bytes are more than an address space", m.Pages, m.Stride)
	default:
		errs = append(errs, m.validatePlaces())
	}
	return errors.Join(errs...)
}

// span returns the number of bytes from the first page of a plane to the end of its last.
func (m *CacheMemory) span() uint64 { return uint64(m.Stride)*uint64(m.Pages-1) + uint64(m.PageBytes) }

// sorted returns the indices of the planes in the order of their addresses.
func (m *CacheMemory) sorted() []int {
	order := make([]int, len(m.Planes))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(m.Planes[a], m.Planes[b]) })
	return order
}

// validatePlaces reports planes with impossible addresses, and planes whose pages overlap. Planes
// may interleave: the pages of one may lie in the gaps of another.
func (m *CacheMemory) validatePlaces() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	n, order := mem.DevAddr(m.span()), m.sorted()
	for i, a := range m.Planes {
		switch {
		case a == 0:
			bad("plane %d has no address", i)
		case a > math.MaxUint64-n:
			bad("plane %d, %d bytes at %#x, ends beyond the address space", i, n, a)
		}
	}
	for k, i := range order {
		for _, j := range order[k+1:] {
			off := m.Planes[j] - m.Planes[i]
			if off >= n {
				break
			}
			// The first page of j starts within this page of i and the gap after it.
			page, in := uint64(off)/uint64(m.Stride), uint64(off)%uint64(m.Stride)
			if in < uint64(m.PageBytes) || page < uint64(m.Pages-1) && uint64(m.Stride)-in < uint64(m.PageBytes) {
				bad("planes %d and %d overlap: %d pages of %d bytes, %d apart, from %#x end at %#x, and plane %d begins at %#x; check the number of pages, their size and the addresses",
					i, j, m.Pages, m.PageBytes, m.Stride, m.Planes[i], m.Planes[i]+n, j, m.Planes[j])
				break // one overlap with plane i is enough
			}
		}
	}
	return errors.Join(errs...)
}

// makeRegions creates the regions, and the planes of each group in them. Planes whose address
// ranges overlap share a region.
func (c *Cache) makeRegions(memory []CacheMemory) error {
	type place struct {
		group, plane int
		at, end      mem.DevAddr
	}
	var places []place
	planes := make([][]mem.Plane, len(memory)) // by group
	for g := range memory {
		m := &memory[g]
		planes[g] = make([]mem.Plane, len(m.Planes))
		for i, at := range m.Planes {
			planes[g][i] = mem.Plane{Stride: m.Stride, Bytes: m.PageBytes}
			places = append(places, place{g, i, at, at + mem.DevAddr(m.span())})
		}
	}
	slices.SortStableFunc(places, func(a, b place) int { return cmp.Compare(a.at, b.at) })
	for len(places) > 0 {
		start, end, n := places[0].at, places[0].end, 1
		for n < len(places) && places[n].at < end {
			end = max(end, places[n].end)
			n++
		}
		r, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Device: c.engine.dev.Info().Index, Len: int64(end - start), Dev: start})
		if err != nil {
			return err
		}
		c.regions = append(c.regions, r)
		for _, p := range places[:n] {
			pl := &planes[p.group][p.plane]
			pl.Region, pl.Base = r, int64(p.at-start)
		}
		places = places[n:]
	}
	c.setShards(planes)
	return nil
}

// setShards sets the planes of each layer, in the order of the model's layers.
func (c *Cache) setShards(planes [][]mem.Plane) {
	all := 0
	for _, f := range c.engine.groups.formats {
		all += f.Layout.Shards()
	}
	c.pages.Shards = make([][]mem.Plane, all)
	for g, f := range c.engine.groups.formats {
		per := len(planes[g]) / f.Layout.Shards()
		for s := range f.Layout.Shards() {
			shard := planes[g][s*per : (s+1)*per]
			for i := range shard {
				shard[i].SlotOff = f.Layout.ShardOff(s) + int64(i)*shard[i].Bytes
			}
			layer := s
			if c.engine.groups.layers != nil {
				layer = c.engine.groups.layers[g][s]
			}
			c.pages.Shards[layer] = shard
		}
	}
}

// begin keeps c open during a task of e. The caller ends the returned use.
func (c *Cache) begin(e *Engine) (*inuse.Use, error) {
	if c == nil || c.engine != e {
		return nil, fmt.Errorf("the KV cache belongs to another engine: %w", errdefs.ErrInvalid)
	}
	u, err := c.uses.Begin()
	if err != nil {
		return nil, fmt.Errorf("the KV cache: %w", err)
	}
	return u, nil
}

// Close refuses new loads and dumps of the cache, waits for running ones, and unregisters the
// memory. The memory may be freed after Close has returned nil. If ctx ends first, Close returns
// ErrBusy with the cause of ctx, and may be called again. Close caches before the engine.
func (c *Cache) Close(ctx context.Context) error {
	if err := c.uses.Close(ctx); err != nil {
		return fmt.Errorf("close KV cache: loads or dumps of it are under way: %w: %w", errdefs.ErrBusy, err)
	}
	if err := c.engine.Unregister(ctx, c.regions...); err != nil {
		return fmt.Errorf("close KV cache: %w", err)
	}
	return nil
}
