package demo

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/tier/file"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var geometry = block.Geometry{Model: "demo", DType: "bfloat16", Layers: 1, KVHeads: 1, HeadSize: 32, BlockTokens: 16, TPSize: 1}

// newConfig returns a demo on the simulated device.
func newConfig(t *testing.T, out *bytes.Buffer) Config {
	t.Helper()
	return Config{
		Geometry: geometry, Dir: t.TempDir(), Out: out, Limit: 40,
		Open: func(ctx context.Context, dir string) (Engine, error) {
			return kvlane.Open(ctx, kvlane.Config{
				Model:  geometry,
				Device: kvlane.DeviceConfig{Driver: kvlane.Sim},
				Store:  kvlane.StoreConfig{CacheBytes: 3 << 20, Dirs: []string{dir}},
			})
		},
		Verify: func(ctx context.Context, dir string) (int64, int64, error) {
			r, err := file.Verify(ctx, dir, nil)
			return r.Blocks - int64(len(r.Findings)), int64(len(r.Findings)), err
		},
	}
}

func TestDemoHolds(t *testing.T) {
	var out bytes.Buffer
	if err := Run(t.Context(), newConfig(t, &out)); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if n := strings.Count(out.String(), "\n  ✓ "); n != 11 {
		t.Errorf("%d claims hold:\n%s", n, &out)
	}
}

// A store that does not do what the demo claims must not pass.
func TestDemoTellsWhatDoesNotHold(t *testing.T) {
	var out bytes.Buffer
	c := newConfig(t, &out)
	c.Verify = func(context.Context, string) (int64, int64, error) { return 5, 0, nil }
	err := Run(t.Context(), c)
	if !errors.Is(err, ErrClaim) || strings.Count(out.String(), "\n  ✗ ") != 2 || !strings.Contains(out.String(), "\n✗ 2 claims do NOT hold") {
		t.Errorf("got %v\n%s", err, &out)
	}
}

func TestDemoEndsWithItsContext(t *testing.T) {
	var out bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	c := newConfig(t, &out)
	open := c.Open
	c.Open = func(ctx context.Context, dir string) (Engine, error) {
		e, err := open(ctx, dir)
		cancel()
		return e, err
	}
	if err := Run(ctx, c); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
