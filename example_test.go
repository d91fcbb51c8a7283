package kvlane_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
)

// An engine dumps a block from its GPU pages, and later finds it by its prefix and loads it into another page.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	dir, err := os.MkdirTemp("", "kvlane-example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a leftover directory does not change what the example shows

	// The shape of the KV cache: 2 layers, one KV head of 64 bf16 elements, 16 tokens a block.
	geometry := block.Geometry{Model: "example", Layers: 2, KVHeads: 1, HeadSize: 64, DType: "bfloat16", BlockTokens: 16, TPSize: 1}
	e, err := kvlane.Open(ctx, kvlane.Config{
		Model:  geometry,
		Device: kvlane.DeviceConfig{Driver: kvlane.Sim}, // there need not be a GPU
		Store:  kvlane.StoreConfig{CacheBytes: 1 << 20, Dirs: []string{dir}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close(ctx)

	// The engine's paged KV cache: 8 pages, one plane a layer and K/V.
	const pages = 8
	kv, err := e.Device().Alloc(int64(4*pages)*geometry.PlaneBytes(), device.AllocOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer e.Device().Free(kv) //nolint:errcheck // the example ends here
	layout, err := geometry.Layout()
	if err != nil {
		log.Fatal(err)
	}
	cache := pagesOf(kv, geometry, layout, pages)

	// A block's key follows from the engine's hash of its tokens, chained to its parent's.
	key := e.Identity().Key([]byte("hash of the first 16 tokens"))

	dump, err := e.Store().Dump(ctx, cache, []store.Ref{{Key: key, Page: 3}}, store.DumpOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("page may be reused:", dump.SourceFree(ctx) == nil)
	fmt.Println("block is durable:", dump.Durable(ctx) == nil)

	lease, err := e.Store().LeasePrefix(ctx, []block.Key{key, e.Identity().Key([]byte("never seen"))}, 10*time.Second)
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release()
	fmt.Println("prefix found:", lease.Len(), "block in tier", lease.Tier(0))

	load, err := e.Store().Load(ctx, lease, cache, []store.Ref{{Key: key, Page: 5}}, store.LoadOptions{Layerwise: true})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("layer 0 loaded:", load.WaitShard(ctx, 0) == nil)
	fmt.Println("all loaded:", load.Wait(ctx) == nil)
	// Output:
	// page may be reused: true
	// block is durable: true
	// prefix found: 1 block in tier cache
	// layer 0 loaded: true
	// all loaded: true
}

// pagesOf describes a KV cache that holds K and V of each layer one after the other, n pages each.
func pagesOf(kv *mem.Region, g block.Geometry, layout *block.Layout, n int64) *store.Pages {
	p := &store.Pages{Shards: make([][]mem.Plane, layout.Shards())}
	bytes := g.PlaneBytes()
	for layer := range p.Shards {
		for i := range int64(g.PlanesPerLayer()) {
			plane := int64(layer*g.PlanesPerLayer()) + i
			p.Shards[layer] = append(p.Shards[layer], mem.Plane{
				Region: kv, Base: plane * n * bytes, Stride: bytes, Bytes: bytes,
				SlotOff: layout.ShardOff(layer) + i*bytes,
			})
		}
	}
	return p
}
