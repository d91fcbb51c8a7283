package replay

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

// kvCache is the paged KV cache of an engine: one region of device memory with one plane for each layer's K and V, and
// a free list of its pages. Safe for concurrent use.
type kvCache struct {
	dev       device.Device
	region    *mem.Region
	planeDesc *mem.Region // pinned: the planes as kernels read them
	planes    []mem.Plane // layer by layer, K before V
	perLayer  int
	pages     store.Pages

	// avail counts free pages, so that a wait for several is one wait, first come first served.
	avail     *semaphore.Weighted
	mu        sync.Mutex
	free      []uint32 // guarded by mu
	abandoned int      // guarded by mu
}

// newKVCache allocates a cache of n pages of geometry g. The free list is shuffled by seed, so that a request's pages
// are scattered from the start, as they are in an engine that has run for a while.
func newKVCache(dev device.Device, g block.Geometry, layout *block.Layout, n int, seed uint64) (*kvCache, error) {
	c := &kvCache{dev: dev, perLayer: g.PlanesPerLayer(), avail: semaphore.NewWeighted(int64(n))}
	planeBytes := g.PlaneBytes()
	count := g.Layers * c.perLayer
	// Descriptors and patterns are defined in words; aligned planes keep every load of the kernels aligned too.
	stride := (planeBytes + 15) &^ 15
	total := int64(count) * int64(n) * stride // fits: MaxPages times block.MaxImageBytes does, with room for the gaps
	var err error
	if c.region, err = dev.Alloc(total, device.AllocOptions{}); err != nil {
		return nil, fmt.Errorf("allocate a KV cache of %d pages, %d bytes: %w", n, total, err)
	}
	if c.planeDesc, err = dev.AllocHost(int64(count) * device.PlaneDescBytes); err != nil {
		return nil, errors.Join(fmt.Errorf("allocate %d plane descriptors: %w", count, err), dev.Free(c.region))
	}
	c.pages.Shards = make([][]mem.Plane, layout.Shards())
	for p := range count {
		layer, within := p/c.perLayer, int64(p%c.perLayer)
		pl := mem.Plane{
			Region: c.region, Base: int64(p) * int64(n) * stride, Stride: stride, Bytes: planeBytes,
			SlotOff: layout.ShardOff(layer) + within*planeBytes,
		}
		c.planes = append(c.planes, pl)
		c.pages.Shards[layer] = append(c.pages.Shards[layer], pl)
		device.PlaneDescOf(&pl).Put(c.planeDesc.Bytes()[p*device.PlaneDescBytes:])
	}
	c.free = make([]uint32, n) // after the device has found room for so many pages
	for i := range c.free {
		c.free[i] = uint32(i)
	}
	rng := rand.New(rand.NewPCG(seed, contentSalt))
	rng.Shuffle(n, func(i, j int) { c.free[i], c.free[j] = c.free[j], c.free[i] })
	return c, nil
}

// blockBytes is what one block holds on the device.
func (c *kvCache) blockBytes() int64 { return int64(len(c.planes)) * c.planes[0].Bytes }

// part names what plane p holds of its layer.
func (c *kvCache) part(p int) string {
	switch {
	case c.perLayer == 1:
		return "latent"
	case p%c.perLayer == 0:
		return "k"
	}
	return "v"
}

// take appends n free pages to dst, waiting until there are as many or ctx ends.
func (c *kvCache) take(ctx context.Context, dst []uint32, n int) ([]uint32, error) {
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

// give returns pages to the free list. Nothing may write or read them any more.
func (c *kvCache) give(pages []uint32) {
	c.mu.Lock()
	c.free = append(c.free, pages...)
	c.mu.Unlock()
	c.avail.Release(int64(len(pages)))
}

// abandon says that n pages may still be touched by a transfer that did not come to rest.
func (c *kvCache) abandon(n int) {
	c.mu.Lock()
	c.abandoned += n
	c.mu.Unlock()
}

// close frees the memory; every queue that used it is idle. Where transfers have not come to rest the memory is kept,
// and ErrBusy says so.
func (c *kvCache) close() error {
	c.mu.Lock()
	n := c.abandoned
	c.mu.Unlock()
	if n > 0 {
		return fmt.Errorf("free the KV cache: transfers may still touch %d of its pages: %w", n, errdefs.ErrBusy)
	}
	return errors.Join(c.dev.Free(c.planeDesc), c.dev.Free(c.region))
}
