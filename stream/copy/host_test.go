package copy_test

import (
	"errors"
	"testing"

	"github.com/kvlane/kvlane/device/host"
	"github.com/kvlane/kvlane/errdefs"
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

// TestConformanceHost is of every path that the CPU has; it has no resident kernels.
func TestConformanceHost(t *testing.T) {
	for _, p := range paths {
		if p == stream.PathResident {
			continue
		}
		t.Run(pathName(p), func(t *testing.T) {
			streamtest.Run(t, func(t *testing.T) streamtest.Env {
				t.Helper()
				return env(t, openHost(t), streamcopy.Options{Path: p, StagingBytes: 256 << 10})
			})
		})
	}
	if s, err := streamcopy.Open(openHost(t), streamcopy.Options{Path: stream.PathResident}); s != nil || !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("a resident kernel on the CPU: %v", err)
	}
}
