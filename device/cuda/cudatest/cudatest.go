// Package cudatest opens a real GPU for tests of other packages, if there is one.
package cudatest

import (
	"errors"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
)

// Open opens GPU 0 until the test ends. Without a driver or a GPU the test is skipped, or fails if
// KVLANE_REQUIRE contains cuda.
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

// UseDriverOnce uses every GPU and its cuFile once. On first use, the driver and libcufile open
// device files and start threads, and keep them. TestMain calls it before leaks are counted,
// because these are not leaks of a test.
func UseDriverOnce() {
	for i := range Count() {
		driver, err := cuda.Load()
		if err != nil {
			return
		}
		dev, err := driver.Open(i, cuda.Options{})
		if err != nil {
			continue
		}
		if opener, ok := dev.(device.StorageOpener); ok {
			if files, err := opener.OpenStorage(device.StorageOptions{}); err == nil {
				_ = files.Close()
			}
		}
		_ = dev.Close()
	}
}

// Count returns the number of GPUs, or zero without a driver.
func Count() int {
	driver, err := cuda.Load()
	if err != nil {
		return 0
	}
	n, err := driver.Count()
	if err != nil {
		return 0
	}
	return n
}
