// Package cudatest gives tests of other packages a real GPU, where there is one.
package cudatest

import (
	"errors"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
)

// Open opens GPU 0 until the test ends. Where there is no driver or no GPU the test is skipped, or fails if KVLANE_REQUIRE
// names cuda.
func Open(tb testing.TB) device.Device {
	tb.Helper()
	driver, err := cuda.Load()
	if errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(tb, "cuda", err.Error())
	}
	if err != nil {
		tb.Fatal(err)
	}
	dev, err := driver.Open(0, cuda.Options{})
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
