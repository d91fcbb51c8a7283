package kvlane_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
)

// tiny is a model of 2 layers with one KV head of 64 bf16 elements. A block has 16 tokens.
var tiny = kvlane.Geometry{Model: "example", Layers: 2, KVHeads: 1, HeadSize: 64, DType: "bfloat16", BlockTokens: 16, TPSize: 1}

// openTiny returns an engine on the simulated device, with the memory of a paged KV cache of 8 pages and the key of one block.
func openTiny(ctx context.Context) (e *kvlane.Engine, kv *mem.Region, key kvlane.Key) {
	e, err := kvlane.Open(ctx, kvlane.Config{
		Model: tiny, Device: kvlane.DeviceConfig{Driver: kvlane.Sim}, Store: kvlane.StoreConfig{CacheBytes: 1 << 20},
	})
	check(err)
	kv, err = e.Device().Alloc(4*8*tiny.PlaneBytes(), device.AllocOptions{})
	check(err)
	return e, kv, e.Key([]byte("hash of 16 tokens, and of those before them"))
}

// register registers the memory of openTiny: keys of layer 0, values of layer 0, keys of layer 1,
// and so on, 8 pages each.
func register(e *kvlane.Engine, kv *mem.Region) *kvlane.Cache {
	m := kvlane.CacheMemory{Pages: 8, PageBytes: tiny.PlaneBytes()}
	for plane := range mem.DevAddr(4) {
		m.Planes = append(m.Planes, kv.Dev()+plane*8*mem.DevAddr(m.PageBytes))
	}
	cache, err := e.RegisterCache(m)
	check(err)
	return cache
}

// RegisterCache takes the address of page 0 in each plane. A page length that does not match the
// model is an error.
func ExampleEngine_RegisterCache() {
	ctx := context.Background()
	e, kv, _ := openTiny(ctx)
	defer e.Close(ctx)
	m := kvlane.CacheMemory{Pages: 8, PageBytes: tiny.PlaneBytes() / 2}
	for plane := range mem.DevAddr(4) {
		m.Planes = append(m.Planes, kv.Dev()+plane*8*mem.DevAddr(m.PageBytes))
	}
	_, err := e.RegisterCache(m)
	fmt.Println("half as long:", errors.Is(err, errdefs.ErrInvalid))
	m.PageBytes, m.Stride = tiny.PlaneBytes(), tiny.PlaneBytes()
	for plane := range m.Planes {
		m.Planes[plane] = kv.Dev() + mem.DevAddr(plane)*8*mem.DevAddr(m.Stride)
	}
	cache, err := e.RegisterCache(m)
	fmt.Println("as the model has it:", err)
	check(cache.Close(ctx)) // no load or dump uses the pages any more
	check(e.Device().Free(kv))
	// Output:
	// half as long: true
	// as the model has it: <nil>
}

// A layerwise dump starts while the model still computes: each layer is submitted after its KV is
// in the pages.
func ExampleEngine_Dump() {
	ctx := context.Background()
	e, kv, key := openTiny(ctx)
	defer e.Close(ctx)
	cache := register(e, kv)
	dump, err := e.Dump(ctx, cache, []kvlane.Ref{{Key: key, Page: 3}}, kvlane.DumpOptions{Layerwise: true})
	check(err)
	for layer := range tiny.Layers {
		// Here the model computes the layer.
		check(dump.SubmitShard(ctx, layer))
	}
	check(dump.SourceFree(ctx)) // page 3 may be reused
	check(dump.Durable(ctx))
	fmt.Println("skipped:", dump.Skipped())
	check(cache.Close(ctx))
	check(e.Device().Free(kv))
	// Output: skipped: 0
}

// A lease finds the longest stored prefix and keeps it until the lease is released or expires.
func ExampleEngine_LeasePrefix() {
	ctx := context.Background()
	e, kv, key := openTiny(ctx)
	defer e.Close(ctx)
	cache := register(e, kv)
	dump, err := e.Dump(ctx, cache, []kvlane.Ref{{Key: key, Page: 3}}, kvlane.DumpOptions{})
	check(err)
	check(dump.Durable(ctx))
	lease, err := e.LeasePrefix(ctx, []kvlane.Key{key, e.Key([]byte("never seen"))}, time.Minute)
	check(err)
	fmt.Println(lease.Len(), "block in the tier", lease.Tier(0))
	lease.Release()
	check(cache.Close(ctx))
	check(e.Device().Free(kv))
	// Output: 1 block in the tier cache
}

// Blocks fail individually: a missing block must be computed, and the others are on their pages.
func ExampleEngine_Load() {
	ctx := context.Background()
	e, kv, key := openTiny(ctx)
	defer e.Close(ctx)
	cache := register(e, kv)
	dump, err := e.Dump(ctx, cache, []kvlane.Ref{{Key: key, Page: 3}}, kvlane.DumpOptions{})
	check(err)
	check(dump.Durable(ctx))
	load, err := e.Load(ctx, nil, cache, []kvlane.Ref{{Key: key, Page: 5}, {Key: e.Key([]byte("never seen")), Page: 6}}, kvlane.LoadOptions{})
	check(err)
	if err := load.Wait(ctx); err != nil {
		for i, err := range load.Errs() {
			var b *store.BlockError
			fmt.Printf("block %d: good %t, not found %t\n", i, !errors.As(err, &b), errors.Is(err, errdefs.ErrNotFound))
		}
	}
	check(cache.Close(ctx))
	check(e.Device().Free(kv))
	// Output:
	// block 0: good true, not found false
	// block 1: good false, not found true
}
