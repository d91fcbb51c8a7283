package kvcache

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
)

// Cache is a paged KV cache: one region of device memory, with one plane for the K and one for the
// V of each layer, and a free list of pages. It is safe for concurrent use.
type Cache struct {
	dev       device.Device
	region    *mem.Region
	planeDesc *mem.Region // pinned; the planes in the format of the kernels
	planes    []mem.Plane // ordered by layer, K before V
	perShard  int
	pages     store.Pages

	// avail counts the free pages. A caller waits once for all of its pages; callers are served in
	// order of arrival.
	avail     *semaphore.Weighted
	mu        sync.Mutex
	free      []uint32 // guarded by mu
	abandoned int      // guarded by mu
}

// New allocates a cache of n pages for blocks of a layout. All shards have the same length and
// perShard planes. seed shuffles the free list, so that the pages of a request are scattered, as in
// an engine that has run for a while.
func New(dev device.Device, layout *block.Layout, perShard, n int, seed uint64) (*Cache, error) {
	c := &Cache{dev: dev, perShard: perShard, avail: semaphore.NewWeighted(int64(n))}
	count := layout.Shards() * perShard
	planeBytes := layout.ShardBytes(0) / int64(perShard)
	// Descriptors and patterns consist of words, so planes are aligned for the kernels.
	stride := (planeBytes + 15) &^ 15
	// This cannot overflow: MaxPages times block.MaxImageBytes and the gaps fit.
	total := int64(count) * int64(n) * stride
	var err error
	if c.region, err = dev.Alloc(total, device.AllocOptions{}); err != nil {
		return nil, fmt.Errorf("allocate a KV cache of %d pages, %d bytes: %w", n, total, err)
	}
	if c.planeDesc, err = dev.AllocHost(int64(count) * device.PlaneDescBytes); err != nil {
		return nil, errors.Join(fmt.Errorf("allocate %d plane descriptors: %w", count, err), dev.Free(c.region))
	}
	c.pages.Shards = make([][]mem.Plane, layout.Shards())
	for p := range count {
		layer, within := p/c.perShard, int64(p%c.perShard)
		pl := mem.Plane{
			Region: c.region, Base: int64(p) * int64(n) * stride, Stride: stride, Bytes: planeBytes,
			SlotOff: layout.ShardOff(layer) + within*planeBytes,
		}
		c.planes = append(c.planes, pl)
		c.pages.Shards[layer] = append(c.pages.Shards[layer], pl)
		device.PlaneDescOf(&pl).Put(c.planeDesc.Bytes()[p*device.PlaneDescBytes:])
	}
	c.free = make([]uint32, n) // after the device allocation, which limits n
	for i := range c.free {
		c.free[i] = uint32(i)
	}
	rng := rand.New(rand.NewPCG(seed, contentSalt))
	rng.Shuffle(n, func(i, j int) { c.free[i], c.free[j] = c.free[j], c.free[i] })
	return c, nil
}

// Region returns the memory of all pages.
func (c *Cache) Region() *mem.Region { return c.region }

// Pages returns the planes in the format of the store.
func (c *Cache) Pages() *store.Pages { return &c.pages }

// Planes returns the planes in the order of a block image.
func (c *Cache) Planes() []mem.Plane { return c.planes }

// All returns the span of all planes.
func (c *Cache) All() Span { return Span{0, len(c.planes)} }

// Shard returns the span of the planes of one shard.
func (c *Cache) Shard(i int) Span { return Span{i * c.perShard, c.perShard} }

// PerShard returns the number of planes of a shard.
func (c *Cache) PerShard() int { return c.perShard }

// BlockBytes returns the length of a block on the device.
func (c *Cache) BlockBytes() int64 { return int64(len(c.planes)) * c.planes[0].Bytes }

// Part returns the name of the contents of plane p: "k", "v" or "latent".
func (c *Cache) Part(p int) string {
	switch {
	case c.perShard == 1:
		return "latent"
	case p%c.perShard == 0:
		return "k"
	}
	return "v"
}

// Take appends n free pages to dst. It blocks until n pages are free or ctx ends.
func (c *Cache) Take(ctx context.Context, dst []uint32, n int) ([]uint32, error) {
	if err := c.avail.Acquire(ctx, int64(n)); err != nil {
		return dst, fmt.Errorf("wait for %d free pages: %w", n, context.Cause(ctx))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	rest := len(c.free) - n
	dst = append(dst, c.free[rest:]...)
	c.free = c.free[:rest]
	return dst, nil
}

// Give returns pages to the free list. They must not be accessed any more.
func (c *Cache) Give(pages []uint32) {
	c.mu.Lock()
	c.free = append(c.free, pages...)
	c.mu.Unlock()
	c.avail.Release(int64(len(pages)))
}

// Abandon records that an unfinished transfer may still access n pages. Close then does not free
// the memory.
func (c *Cache) Abandon(n int) {
	c.mu.Lock()
	c.abandoned += n
	c.mu.Unlock()
}

// Close frees the memory. All queues that used it must be idle. If pages were abandoned, it returns
// ErrBusy and does not free the memory.
func (c *Cache) Close() error {
	c.mu.Lock()
	n := c.abandoned
	c.mu.Unlock()
	if n > 0 {
		return fmt.Errorf("free the KV cache: transfers may still touch %d of its pages: %w", n, errdefs.ErrBusy)
	}
	return errors.Join(c.dev.Free(c.planeDesc), c.dev.Free(c.region))
}
