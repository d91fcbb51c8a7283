package acceptance_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/internal/autonic"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
)

func testConfig(t *testing.T) kvlane.Config {
	t.Helper()
	g := block.Geometry{Model: "test", Layers: 2, KVHeads: 1, HeadSize: 16, DType: "bfloat16", BlockTokens: 16, TPSize: 1}
	layout, err := g.Layout()
	if err != nil {
		t.Fatal(err)
	}
	return kvlane.Config{
		Model:  g,
		Device: kvlane.DeviceConfig{Driver: kvlane.Sim},
		Store:  kvlane.StoreConfig{CacheBytes: 16 * layout.ImageBytes(), Dirs: []string{t.TempDir()}},
	}
}

// softUnderAuto is a provider value for tests that allow software NICs even under auto.
const softUnderAuto gdr.Provider = "soft under auto"

func openConfig(t *testing.T, c kvlane.Config) (*kvlane.Engine, error) {
	t.Helper()
	if c.RDMA.Provider == softUnderAuto {
		c.RDMA.Provider = gdr.Soft
		return kvlane.Open(autonic.WithSoft(t.Context()), c)
	}
	return kvlane.Open(t.Context(), c)
}

// openEngine opens an engine, and closes it when the test ends.
func openEngine(t *testing.T, c kvlane.Config) *kvlane.Engine {
	t.Helper()
	e, err := openConfig(t, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience())
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return e
}

func TestDirectoryOfAnotherIdentityIsRefused(t *testing.T) {
	c := testConfig(t)
	e, err := kvlane.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.Tenant = "another"
	if _, err := kvlane.Open(t.Context(), c); !errors.Is(err, errdefs.ErrMismatch) {
		t.Errorf("Open = %v, want ErrMismatch", err)
	}
}

// dumpOneBlock stores a block with an engine that is closed when the test ends.
func dumpOneBlock(t *testing.T, c kvlane.Config) {
	t.Helper()
	e := openEngine(t, c)
	page := c.Model.PlaneBytes()
	kv := newMirror(t, e, 4*page)
	m := kvlane.CacheMemory{Pages: 1, PageBytes: page}
	for plane := range mem.DevAddr(4) {
		m.Planes = append(m.Planes, kv.kv.Dev()+plane*mem.DevAddr(page))
	}
	cache, err := e.RegisterCache(m)
	if err != nil {
		t.Fatal(err)
	}
	d, err := e.Dump(t.Context(), cache, []kvlane.Ref{{Key: e.Key([]byte("a block"))}}, kvlane.DumpOptions{})
	if err == nil {
		err = d.Durable(t.Context())
	}
	if err := errors.Join(err, cache.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// Engines of different identities have separate folders below the same directory. The blocks of
// other folders count for the shared bound, and a note names those folders.
func TestIdentitiesShareADirectory(t *testing.T) {
	c := testConfig(t)
	parent := c.Store.Dirs[0]
	c.Store.Dirs, c.Store.SharedBound, c.Store.FileBytes = []string{filepath.Join(parent, "one")}, true, 64<<20
	t.Run("one", func(t *testing.T) { dumpOneBlock(t, c) })
	if _, err := os.Stat(filepath.Join(parent, "one", "kvlane.json")); err != nil {
		t.Error(err)
	}
	c.Tenant, c.Store.Dirs = "another", []string{filepath.Join(parent, "two")}
	other := openEngine(t, c)
	if notes := strings.Join(other.Notes(), "\n"); !strings.Contains(notes, "other identities use") {
		t.Errorf("notes: %s", notes)
	}
}

// Calls of a closed engine return ErrClosed, with and without NICs.
func TestClosedEngineRefusesCalls(t *testing.T) {
	c := testConfig(t)
	c.Device.Driver = kvlane.Host
	e, err := kvlane.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	cache, err := e.RegisterCache(cacheMemory(c, 1<<32, false))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(cache.Close(t.Context()), e.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	keys := []kvlane.Key{e.Key([]byte("a"))}
	for name, call := range map[string]func() error{
		"RegisterCache": func() error { _, err := e.RegisterCache(cacheMemory(c, 1<<32, false)); return err },
		"Register":      func() error { return e.Register() },
		"OpenStream":    func() error { _, err := e.OpenStream(); return err },
		"OpenTransfer":  func() error { _, err := e.OpenTransfer(t.Context(), kvlane.TransferConfig{}); return err },
		"Lookup":        func() error { _, err := e.Lookup(t.Context(), keys); return err },
		"LeasePrefix":   func() error { _, err := e.LeasePrefix(t.Context(), keys, 0); return err },
		"Prefetch":      func() error { _, err := e.Prefetch(t.Context(), keys); return err },
		"Load":          func() error { _, err := e.Load(t.Context(), nil, cache, nil, kvlane.LoadOptions{}); return err },
		"Dump":          func() error { _, err := e.Dump(t.Context(), cache, nil, kvlane.DumpOptions{}); return err },
		"Drop":          func() error { _, err := e.Drop(t.Context(), keys); return err },
	} {
		if err := call(); !errors.Is(err, errdefs.ErrClosed) {
			t.Errorf("%s of a closed engine: %v, want ErrClosed", name, err)
		}
	}
}

// Calls beyond the configured number of tasks wait.
func TestTasksAreBounded(t *testing.T) {
	c := testConfig(t)
	c.Store.Tasks = 1
	e := openEngine(t, c)
	cache, err := e.RegisterCache(cacheMemory(c, 1<<40, false))
	if err != nil {
		t.Fatal(err)
	}
	refs := []kvlane.Ref{{Key: e.Key([]byte("a")), Page: 0}}
	dump, err := e.Dump(t.Context(), cache, refs, kvlane.DumpOptions{Layerwise: true}) // runs until it is canceled
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.Dump(ended, cache, refs, kvlane.DumpOptions{}); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("a second dump: %v", err)
	}
	dump.Cancel()
	<-dump.Done()
	if _, err := e.Load(t.Context(), nil, cache, refs, kvlane.LoadOptions{}); err != nil {
		t.Errorf("after the first task has ended: %v", err)
	}
	if err := cache.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
