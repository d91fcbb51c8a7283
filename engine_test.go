package kvlane_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
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

// openEngine opens an engine, and closes it when the test ends.
func openEngine(t *testing.T, c kvlane.Config) *kvlane.Engine {
	t.Helper()
	e, err := kvlane.Open(t.Context(), c)
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

func TestConfigReportsEveryProblemAtOnce(t *testing.T) {
	c := kvlane.Config{
		Device: kvlane.DeviceConfig{Driver: "tpu"},
		Store:  kvlane.StoreConfig{Pipeline: "cache|tape", FileBytes: -1},
	}
	err := c.Validate()
	if !errors.Is(err, errdefs.ErrInvalid) {
		t.Fatalf("Validate = %v, want ErrInvalid", err)
	}
	for _, want := range []string{`"tpu"`, "tape", "negative", "the model has no name", "layers 0"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not mention %q:\n%v", want, err)
		}
	}
}

// Config.Blocks describes blocks that a geometry cannot describe. It excludes a geometry.
func TestBlocksTakeThePlaceOfTheModel(t *testing.T) {
	c := testConfig(t)
	id, model := c.Model.Identity("lora", "tenant"), c.Model
	id.Revision, id.LayerFirst, id.LayerEnd = "r1", 2, 4
	layout, err := model.Layout()
	if err != nil {
		t.Fatal(err)
	}
	c.Model, c.Blocks = block.Geometry{}, &kvlane.Blocks{Identity: id, Layout: layout}
	if got := openEngine(t, c).Identity(); got != id {
		t.Errorf("identity %+v", got)
	}
	for name, change := range map[string]func(*kvlane.Config){
		"a model beside them":  func(c *kvlane.Config) { c.Model = model },
		"a tenant beside them": func(c *kvlane.Config) { c.Tenant = "t" },
		"no layout":            func(c *kvlane.Config) { c.Blocks = &kvlane.Blocks{Identity: id} },
		"no identity":          func(c *kvlane.Config) { c.Blocks = &kvlane.Blocks{Layout: layout} },
	} {
		c := c
		change(&c)
		if err := c.Validate(); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c = testConfig(t)
	c.Revision, c.Adapter, c.Tenant = "r1", "lora", "tenant"
	if got := openEngine(t, c).Identity(); got.Revision != "r1" || got.Adapter != "lora" || got.Salt != "tenant" {
		t.Errorf("identity %+v", got)
	}
}

func TestConfigPipelineAndDirectoriesMustAgree(t *testing.T) {
	for name, change := range map[string]func(*kvlane.StoreConfig){
		"file tier without a directory": func(s *kvlane.StoreConfig) { s.Pipeline, s.Dirs = "cache|file", nil },
		"directory without a file tier": func(s *kvlane.StoreConfig) { s.Pipeline = "cache" },
		"cache of less than two blocks": func(s *kvlane.StoreConfig) { s.CacheBytes /= 16 },
	} {
		t.Run(name, func(t *testing.T) {
			c := testConfig(t)
			change(&c.Store)
			if err := c.Validate(); !errors.Is(err, errdefs.ErrInvalid) {
				t.Errorf("Validate = %v, want ErrInvalid", err)
			}
		})
	}
}

func TestOpenUnwindsAfterAnyFailure(t *testing.T) {
	// TestMain would detect a leak.
	t.Run("no room for the cache", func(t *testing.T) {
		c := testConfig(t)
		c.Device.Sim = sim.Options{HostRegisterLimitBytes: 4096}
		if _, err := kvlane.Open(t.Context(), c); !errors.Is(err, errdefs.ErrNoMemory) {
			t.Errorf("Open = %v, want ErrNoMemory", err)
		}
	})
	t.Run("directory is a file", func(t *testing.T) {
		c := testConfig(t)
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		c.Store.Dirs = []string{path}
		_, err := kvlane.Open(t.Context(), c)
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("Open = %v, want an error that names %s", err, path)
		}
	})
}

func TestSimulatedDeviceIndexThatDoesNotExist(t *testing.T) {
	_, err := kvlane.OpenDevice(kvlane.DeviceConfig{Driver: kvlane.Sim, Index: 3})
	if !errors.Is(err, errdefs.ErrNotFound) || !strings.Contains(err.Error(), "3") {
		t.Errorf("OpenDevice = %v, want ErrNotFound naming the index, as of a GPU", err)
	}
}

// Without a GPU and without a configured driver, Open returns an error that names the remedy. It
// does not simulate a GPU.
func TestNoGPUIsAnErrorThatNamesTheRemedy(t *testing.T) {
	c := testConfig(t)
	c.Device = kvlane.DeviceConfig{}
	e, err := kvlane.Open(t.Context(), c)
	if err == nil { // this machine has a GPU
		if d := e.Device().Info().Driver; d != string(kvlane.CUDA) {
			t.Errorf("the default device is of driver %q", d)
		}
		if err := e.Close(t.Context()); err != nil {
			t.Error(err)
		}
		return
	}
	if !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), "install an NVIDIA driver") || !strings.Contains(err.Error(), `"sim"`) {
		t.Errorf("Open = %v", err)
	}
}

func TestEngineClosesTwice(t *testing.T) {
	e, err := kvlane.Open(t.Context(), testConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := e.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
