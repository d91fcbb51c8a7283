package kvlane_test

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/mem"
)

// A program that computes on the CPU keeps its KV cache in memory from AllocHost, which it accesses
// as bytes.
func Example_hostDevice() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	model := kvlane.Geometry{Model: "example", Layers: 2, KVHeads: 1, HeadSize: 64, DType: "bfloat16", BlockTokens: 16, TPSize: 1}
	e, err := kvlane.Open(ctx, kvlane.Config{
		Model:  model,
		Device: kvlane.DeviceConfig{Driver: kvlane.Host},
		Store:  kvlane.StoreConfig{CacheBytes: 1 << 20},
	})
	check(err)
	defer e.Close(ctx)

	// 8 pages; the keys and values of each layer are separate planes, one after another.
	const pages, planes = 8, 4
	kv, err := e.Device().AllocHost(planes * pages * model.PlaneBytes())
	check(err)
	defer e.Device().Free(kv) //nolint:errcheck // the example ends here
	m := kvlane.CacheMemory{Pages: pages, PageBytes: model.PlaneBytes()}
	for plane := range mem.DevAddr(planes) {
		m.Planes = append(m.Planes, kv.Dev()+plane*pages*mem.DevAddr(m.PageBytes))
	}
	cache, err := e.RegisterCache(m)
	check(err)
	defer cache.Close(ctx)
	page := func(plane, n int64) []byte { return kv.Bytes()[(plane*pages+n)*m.PageBytes:][:m.PageBytes] }

	key := e.Key([]byte("hash of the first 16 tokens"))
	for plane := range int64(planes) {
		copy(page(plane, 3), bytes.Repeat([]byte{byte(10 + plane)}, int(m.PageBytes)))
	}
	dump, err := e.Dump(ctx, cache, []kvlane.Ref{{Key: key, Page: 3}}, kvlane.DumpOptions{})
	check(err)
	check(dump.Durable(ctx))

	lease, err := e.LeasePrefix(ctx, []kvlane.Key{key}, 10*time.Second)
	check(err)
	defer lease.Release()
	load, err := e.Load(ctx, lease, cache, []kvlane.Ref{{Key: key, Page: 5}}, kvlane.LoadOptions{})
	check(err)
	check(load.Wait(ctx))
	for plane := range int64(planes) {
		fmt.Println("plane", plane, "is equal:", bytes.Equal(page(plane, 5), page(plane, 3)), "first byte:", page(plane, 5)[0])
	}
	// Output:
	// plane 0 is equal: true first byte: 10
	// plane 1 is equal: true first byte: 11
	// plane 2 is equal: true first byte: 12
	// plane 3 is equal: true first byte: 13
}
