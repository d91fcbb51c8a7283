package kvlane_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/log"
)

// eventIndex is an index of the blocks in the tiers of an engine that follows its events.
type eventIndex struct {
	e *kvlane.Engine

	mu     sync.Mutex
	blocks map[string]map[kvlane.Key]bool // by tier; guarded by mu
	count  map[string]int                 // events by tier and change; guarded by mu
	err    error                          // guarded by mu
}

// follow applies the events of an engine until ctx ends.
func (x *eventIndex) follow(ctx context.Context) {
	for event := range x.e.Events(ctx) {
		x.mu.Lock()
		x.count[event.Tier+" "+event.Change.String()]++
		switch event.Change {
		case kvlane.EventLost:
			x.blocks, x.err = contents(ctx, x.e)
		case kvlane.EventStored:
			x.blocks[event.Tier][event.Key] = true
		case kvlane.EventRemoved:
			delete(x.blocks[event.Tier], event.Key)
		}
		x.mu.Unlock()
	}
}

// contents returns the blocks in each tier.
func contents(ctx context.Context, e *kvlane.Engine) (map[string]map[kvlane.Key]bool, error) {
	all := make(map[string]map[kvlane.Key]bool)
	for _, t := range e.Tiers() {
		all[t.Name()] = make(map[kvlane.Key]bool)
		for key, err := range e.Blocks(ctx, t.Name()) {
			if err != nil {
				return all, err
			}
			all[t.Name()][key] = true
		}
	}
	return all, nil
}

// check waits until the index has the contents of the tiers.
func (x *eventIndex) check(t *testing.T, when string) {
	t.Helper()
	for end := time.Now().Add(testkit.Patience()); ; time.Sleep(time.Millisecond) {
		want, err := contents(t.Context(), x.e)
		if err != nil {
			t.Fatal(err)
		}
		x.mu.Lock()
		same, err := maps.EqualFunc(x.blocks, want, func(a, b map[kvlane.Key]bool) bool { return maps.Equal(a, b) }), x.err
		got := fmt.Sprint(x.blocks)
		x.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		if same {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: the index has %s, the tiers %v", when, got, want)
		}
	}
}

// openEvents opens an engine with a registered cache of pages.
func openEvents(t *testing.T, c kvlane.Config, pages int) (*kvlane.Engine, *kvlane.Cache) {
	t.Helper()
	e := openEngine(t, c)
	page := c.Model.PlaneBytes()
	kv, err := e.Device().Alloc(4*int64(pages)*page, device.AllocOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m := kvlane.CacheMemory{Pages: pages, PageBytes: page}
	for plane := range kvlane.DevAddr(4) {
		m.Planes = append(m.Planes, kv.Dev()+plane*kvlane.DevAddr(int64(pages)*page))
	}
	cache, err := e.RegisterCache(m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(cache.Close(context.Background()), e.Device().Free(kv)); err != nil {
			t.Error(err)
		}
	})
	return e, cache
}

// An index that follows the events has the contents of the tiers after dumps, loads, evictions by
// the bounds, collection, deletions and damage.
func TestEventsGiveTheContentsOfTheTiers(t *testing.T) {
	const pages = 4
	for _, pipeline := range []string{"cache", "cache|file", "cache|log", "cache|file|log", "file"} {
		t.Run(pipeline, func(t *testing.T) {
			c := testConfig(t)
			dir, image := c.Store.Dirs[0], c.Store.CacheBytes/16
			c.Store.Pipeline, c.Store.Dirs, c.Store.CacheBytes = pipeline, nil, 6*image
			tiers := strings.Split(pipeline, "|")
			if slices.Contains(tiers, "file") {
				c.Store.Dirs, c.Store.FileBytes = []string{filepath.Join(dir, "files")}, 24*image
			}
			if slices.Contains(tiers, "log") {
				c.Store.LogDir, c.Store.LogBytes = filepath.Join(dir, "log"), 64*(image+8192)
			}
			e, cache := openEvents(t, c, pages)
			x := &eventIndex{e: e, count: map[string]int{}}
			ctx, end := context.WithCancel(t.Context())
			var following sync.WaitGroup
			following.Go(func() { x.follow(ctx) })
			defer following.Wait()
			defer end()
			rng := rand.New(rand.NewPCG(1, 2))
			refs := func() (all []kvlane.Ref) {
				first := rng.IntN(60)
				for i := range pages {
					all = append(all, kvlane.Ref{Key: e.Key(fmt.Append(nil, first+i)), Page: uint32(i)})
				}
				return all
			}
			for i := range 120 {
				if i%3 == 2 {
					some := refs()
					load, err := e.Load(ctx, nil, cache, some, kvlane.LoadOptions{})
					if err != nil {
						t.Fatal(err)
					}
					_ = load.Wait(ctx) // misses fail
					continue
				}
				dump, err := e.Dump(ctx, cache, refs(), kvlane.DumpOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if err := dump.Durable(ctx); err != nil {
					t.Fatal(err)
				}
				if i%40 == 0 {
					x.check(t, "after dumps")
				}
			}
			x.check(t, "after dumps and loads")
			for _, tr := range e.Tiers() {
				for key, err := range e.Blocks(ctx, tr.Name()) {
					if err := errors.Join(err, tr.Delete(ctx, key)); err != nil {
						t.Fatal(err)
					}
					break
				}
				switch tr := tr.(type) {
				case *file.Tier:
					damageFile(t, c.Store.Dirs[0])
					for key, err := range e.Blocks(ctx, file.Name) {
						if err != nil {
							t.Fatal(err)
						}
						_, _ = e.Drop(ctx, []kvlane.Key{key})
						load, err := e.Load(ctx, nil, cache, []kvlane.Ref{{Key: key}}, kvlane.LoadOptions{})
						if err != nil {
							t.Fatal(err)
						}
						_ = load.Wait(ctx) // one block is damaged
					}
					if s := tr.Stats(); s.Corrupt != 1 {
						t.Errorf("%d blocks were damaged", s.Corrupt)
					}
					x.check(t, "after damage")
					if _, err := tr.GC(ctx, 3*image); err != nil {
						t.Fatal(err)
					}
				case *log.Tier:
					if _, err := tr.GC(ctx, 20*image); err != nil {
						t.Fatal(err)
					}
				}
			}
			x.check(t, "after deletions and collection")
			end()
			following.Wait()
			for _, tr := range e.Tiers() {
				if n := tr.Name(); n != "window" && (x.count[n+" stored"] == 0 || x.count[n+" removed"] == 0) {
					t.Errorf("the events of tier %s: %v", n, x.count)
				}
			}
			if x.count[" lost"] != 1 || e.LostEvents() != 0 {
				t.Errorf("%v, %d events lost", x.count, e.LostEvents())
			}
		})
	}
}

// damageFile flips a bit of a block's file.
func damageFile(t *testing.T, dir string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "[0-9a-f][0-9a-f]", "*"))
	if err != nil || len(names) == 0 {
		t.Fatal("no files", err)
	}
	b, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if err := os.WriteFile(names[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Without a loop there are no events, and a tier that the pipeline does not have is an error.
func TestBlocksOfUnknownTiers(t *testing.T) {
	e := openEngine(t, testConfig(t))
	for key, err := range e.Blocks(t.Context(), "tape") {
		if key != (block.Key{}) || !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("%s, %v", key, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for event := range e.Events(ctx) {
		if event.Change != kvlane.EventLost {
			t.Errorf("the first event is %v", event)
		}
		cancel()
	}
}
