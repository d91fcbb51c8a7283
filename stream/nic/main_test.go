package nic_test

import (
	"testing"

	"github.com/kvlane/kvlane/device/cuda"
	"github.com/kvlane/kvlane/internal/testkit"
)

// The CUDA driver opens files when a GPU is first used and keeps them. Where there is one, it is used before the check
// for leaks begins.
func TestMain(m *testing.M) {
	if driver, err := cuda.Load(); err == nil {
		if dev, err := driver.Open(0, cuda.Options{}); err == nil {
			_ = dev.Close()
		}
	}
	testkit.Main(m)
}
