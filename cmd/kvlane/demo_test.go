package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier/file"
)

var demoGeometry = block.Geometry{Model: "demo", DType: "bfloat16", Layers: 1, KVHeads: 1, HeadSize: 32, BlockTokens: 16, TPSize: 1}

// newDemo returns a demo on the simulated device.
func newDemo(t *testing.T, out *bytes.Buffer) *demo {
	t.Helper()
	return &demo{
		geometry: demoGeometry, dir: t.TempDir(), out: out, limit: 40, errs: io.Discard,
		open: func(ctx context.Context, dir string) (*kvlane.Engine, error) {
			return kvlane.Open(ctx, kvlane.Config{
				Model:  demoGeometry,
				Device: kvlane.DeviceConfig{Driver: kvlane.Sim},
				Store:  kvlane.StoreConfig{CacheBytes: 3 << 20, Dirs: []string{dir}},
			})
		},
		verify: func(ctx context.Context, dir string) (int64, int64, error) {
			r, err := file.Verify(ctx, dir, nil)
			return r.Blocks - int64(len(r.Findings)), int64(len(r.Findings)), err
		},
	}
}

func TestDemoHolds(t *testing.T) {
	var out bytes.Buffer
	if err := newDemo(t, &out).run(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if n := strings.Count(out.String(), "\n  ✓ "); n != 11 {
		t.Errorf("%d claims hold:\n%s", n, &out)
	}
}

// The demo fails if a claim is false.
func TestDemoReportsFalseClaims(t *testing.T) {
	var out bytes.Buffer
	d := newDemo(t, &out)
	d.verify = func(context.Context, string) (int64, int64, error) { return 5, 0, nil }
	err := d.run(t.Context())
	if !errors.Is(err, errClaim) || strings.Count(out.String(), "\n  ✗ ") != 2 || !strings.Contains(out.String(), "\n✗ 2 claims do NOT hold") {
		t.Errorf("got %v\n%s", err, &out)
	}
}

func TestDemoEndsWithItsContext(t *testing.T) {
	var out bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	d := newDemo(t, &out)
	open := d.open
	d.open = func(ctx context.Context, dir string) (*kvlane.Engine, error) {
		e, err := open(ctx, dir)
		cancel()
		return e, err
	}
	if err := d.run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
