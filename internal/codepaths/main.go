// Command codepaths writes the coverage of Engine.LeasePrefix and of a load of one cached block to
// the folders LeasePrefix and Load of its argument. An earlier load opens the streams, so that the
// coverage does not include that. tools/codepaths builds the command for coverage, runs it and
// counts the functions.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/coverage"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/device"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: codepaths FOLDER")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "codepaths:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string) (err error) {
	const pages, planes = 2, 4
	model := kvlane.Geometry{Model: "codepaths", Layers: planes / 2, KVHeads: 8, HeadSize: 128, DType: "bfloat16", BlockTokens: 16, TPSize: 1}
	e, err := kvlane.Open(ctx, kvlane.Config{
		Model: model, Device: kvlane.DeviceConfig{Driver: kvlane.Sim}, Store: kvlane.StoreConfig{CacheBytes: 1 << 20},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close(ctx)) }()
	plane := pages * model.PlaneBytes()
	kv, err := e.Device().Alloc(planes*plane, device.AllocOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Device().Free(kv)) }()
	memory := kvlane.CacheMemory{Pages: pages}
	for i := range int64(planes) {
		memory.Planes = append(memory.Planes, kv.Dev()+kvlane.DevAddr(i*plane))
	}
	cache, err := e.RegisterCache(memory)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cache.Close(ctx)) }()
	return calls(ctx, dir, e, cache)
}

// calls dumps a block and writes the coverage of LeasePrefix and of a load for it.
func calls(ctx context.Context, dir string, e *kvlane.Engine, cache *kvlane.Cache) error {
	keys := []kvlane.Key{e.Key([]byte("a block"))}
	dump, err := e.Dump(ctx, cache, []kvlane.Ref{{Key: keys[0]}}, kvlane.DumpOptions{})
	if err == nil {
		err = dump.Durable(ctx)
	}
	if err != nil {
		return err
	}
	var lease *kvlane.Lease
	err = covered(filepath.Join(dir, "LeasePrefix"), func() (err error) {
		lease, err = e.LeasePrefix(ctx, keys, time.Minute)
		return err
	})
	if err != nil {
		return err
	}
	defer lease.Release()
	load := func() error {
		load, err := e.Load(ctx, lease, cache, []kvlane.Ref{{Key: keys[0], Page: 1}}, kvlane.LoadOptions{})
		if err == nil {
			err = load.Wait(ctx)
		}
		return err
	}
	if err := load(); err != nil { // opens the stream
		return err
	}
	return covered(filepath.Join(dir, "Load"), load)
}

// covered writes the coverage of f to a new folder.
func covered(dir string, f func() error) error {
	time.Sleep(100 * time.Millisecond) // wait until goroutines of earlier calls have ended
	for _, step := range []func() error{
		func() error { return os.MkdirAll(dir, 0o750) }, coverage.ClearCounters, f,
		func() error { return coverage.WriteMetaDir(dir) }, func() error { return coverage.WriteCountersDir(dir) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
