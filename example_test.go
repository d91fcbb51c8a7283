package kvlane_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/device"
)

// An engine dumps a block from its GPU pages, and later finds it by its prefix and loads it into another page.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	dir, err := os.MkdirTemp("", "kvlane-example-")
	check(err)
	defer os.RemoveAll(dir) //nolint:errcheck // a leftover directory does not change what the example shows

	// The KV cache has 2 layers and one KV head of 64 bf16 elements. A block has 16 tokens. For a
	// known model use block.PresetByName("llama-3.1-8b").
	model := kvlane.Geometry{Model: "example", Layers: 2, KVHeads: 1, HeadSize: 64, DType: "bfloat16", BlockTokens: 16, TPSize: 1}
	e, err := kvlane.Open(ctx, kvlane.Config{
		Model:  model,
		Device: kvlane.DeviceConfig{Driver: kvlane.Sim}, // leave it out on a machine with a GPU
		Store:  kvlane.StoreConfig{CacheBytes: 1 << 20, Dirs: []string{dir}},
	})
	check(err)
	defer e.Close(ctx)

	// The program's paged KV cache has 8 pages. The keys and values of each layer are separate
	// planes.
	const pages = 8
	kv, err := e.Device().Alloc(4*pages*model.PlaneBytes(), device.AllocOptions{})
	check(err)
	defer e.Device().Free(kv) //nolint:errcheck // the example ends here
	m := kvlane.CacheMemory{Pages: pages, PageBytes: model.PlaneBytes()}
	for plane := range kvlane.DevAddr(4) {
		m.Planes = append(m.Planes, kv.Dev()+plane*pages*kvlane.DevAddr(m.PageBytes))
	}
	cache, err := e.RegisterCache(m)
	check(err)
	defer cache.Close(ctx)

	// A block's key follows from the hash of its tokens, chained to its parent's.
	key := e.Key([]byte("hash of the first 16 tokens"))

	dump, err := e.Dump(ctx, cache, []kvlane.Ref{{Key: key, Page: 3}}, kvlane.DumpOptions{})
	check(err)
	fmt.Println("page may be reused:", dump.SourceFree(ctx) == nil)
	fmt.Println("block is durable:", dump.Durable(ctx) == nil)

	lease, err := e.LeasePrefix(ctx, []kvlane.Key{key, e.Key([]byte("never seen"))}, 10*time.Second)
	check(err)
	defer lease.Release()
	fmt.Println("prefix found:", lease.Len(), "block in tier", lease.Tier(0))

	load, err := e.Load(ctx, lease, cache, []kvlane.Ref{{Key: key, Page: 5}}, kvlane.LoadOptions{Layerwise: true})
	check(err)
	fmt.Println("layer 0 loaded:", load.WaitShard(ctx, 0) == nil)
	fmt.Println("all loaded:", load.Wait(ctx) == nil)
	// Output:
	// page may be reused: true
	// block is durable: true
	// prefix found: 1 block in tier cache
	// layer 0 loaded: true
	// all loaded: true
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
