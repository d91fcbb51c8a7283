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

// Cache is the paged KV cache of an engine: one region of device memory, with one plane for each
// layer's K and one for its V, and a free list of its pages. It is safe for concurrent use.
type Cache struct {
	dev       device.Device
	region    *mem.Region
	planeDesc *mem.Region // pinned: the planes in the kernels' format
	planes    []mem.Plane // layer by layer, K before V
	perShard  int
	pages     store.Pages

	// avail counts the free pages. A caller waits once for all its pages, in order of arrival.
	avail     *semaphore.Weighted
	mu        sync.Mutex
	free      []uint32 // guarded by mu
	abandoned int      // guarded by mu
}

// New allocates a cache of n pages for blocks of a layout, whose shards have the same length and
// perShard planes each. seed shuffles the free list, so that a request's pages are scattered from
// the start, as in an engine that has run for a while.
func New(dev device.Device, layout *block.Layout, perShard, n int, seed uint64) (*Cache, error) {
	c := &Cache{dev: dev, perShard: perShard, avail: semaphore.NewWeighted(int64(n))}
	count := layout.Shards() * perShard
	planeBytes := layout.ShardBytes(0) / int64(perShard)
	// Descriptors and patterns consist of words. Aligned planes keep the accesses of kernels
	// aligned.
	stride := (planeBytes + 15) &^ 15
	// No overflow: MaxPages times block.MaxImageBytes fits, with space for the gaps.
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
	c.free = make([]uint32, n) // after the allocation, which limits n
	for i := range c.free {
		c.free[i] = uint32(i)
	}
	rng := rand.New(rand.NewPCG(seed, contentSalt))
	rng.Shuffle(n, func(i, j int) { c.free[i], c.free[j] = c.free[j], c.free[i] })
	return c, nil
}

// Region returns the memory of all pages.
func (c *Cache) Region() *mem.Region { return c.region }

// Pages returns the planes in the form for the store.
func (c *Cache) Pages() *store.Pages { return &c.pages }

// Planes returns the planes in the order of a block's image.
func (c *Cache) Planes() []mem.Plane { return c.planes }

// All returns the span of all planes.
func (c *Cache) All() Span { return Span{0, len(c.planes)} }

// Shard returns the span of the planes of one shard.
func (c *Cache) Shard(i int) Span { return Span{i * c.perShard, c.perShard} }

// PerShard returns the number of planes of a shard.
func (c *Cache) PerShard() int { return c.perShard }

// BlockBytes returns the number of bytes of a block on the device.
func (c *Cache) BlockBytes() int64 { return int64(len(c.planes)) * c.planes[0].Bytes }

// Part returns the content of plane p: "k", "v" or "latent".
func (c *Cache) Part(p int) string {
	switch {
	case c.perShard == 1:
		return "latent"
	case p%c.perShard == 0:
		return "k"
	}
	return "v"
}

// Take appends n free pages to dst. It blocks until there are as many, or until ctx ends.
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

// Give returns pages to the free list. The last access to them must be over.
func (c *Cache) Give(pages []uint32) {
	c.mu.Lock()
	c.free = append(c.free, pages...)
	c.mu.Unlock()
	c.avail.Release(int64(len(pages)))
}

// Abandon reports that a transfer that has not ended may still access n pages.
func (c *Cache) Abandon(n int) {
	c.mu.Lock()
	c.abandoned += n
	c.mu.Unlock()
}

// Close frees the memory. All queues that used it must be idle. If pages were abandoned, Close
// keeps the memory and returns ErrBusy.
func (c *Cache) Close() error {
	c.mu.Lock()
	n := c.abandoned
	c.mu.Unlock()
	if n > 0 {
		return fmt.Errorf("free the KV cache: transfers may still touch %d of its pages: %w", n, errdefs.ErrBusy)
	}
	return errors.Join(c.dev.Free(c.planeDesc), c.dev.Free(c.region))
}
