package copy_test

import (
	"testing"

	"github.com/kvlane/kvlane/device/host"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/streamtest"
)

func openHost(tb testing.TB) *host.Device {
	tb.Helper()
	dev, err := host.Open()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := dev.Close(); err != nil {
			tb.Error(err)
		}
	})
	return dev
}

// TestConformanceHost runs the suite on every path of the host device.
func TestConformanceHost(t *testing.T) {
	for _, p := range paths {
		t.Run(pathName(p), func(t *testing.T) {
			if p != stream.PathNone {
				testkit.SkipRace(t, "TestConformanceSim runs each path")
			}
			streamtest.Run(t, func(t *testing.T) streamtest.Env {
				t.Helper()
				return env(t, openHost(t), streamcopy.Options{Path: p, StagingBytes: 256 << 10})
			})
		})
	}
}
