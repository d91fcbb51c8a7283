package cuda_test

import (
	"testing"

	"github.com/kvlane/kvlane/device/cuda"
	"github.com/kvlane/kvlane/internal/testkit"
)

// The driver opens device files and starts threads when a GPU is first used, and keeps them; they are none of the
// tests' leaks, so every GPU is used once before the count begins.
func TestMain(m *testing.M) {
	useDriverOnce()
	testkit.Main(m)
}

func useDriverOnce() {
	drv, err := cuda.Load()
	if err != nil {
		return // the tests will say why
	}
	n, err := drv.Count()
	if err != nil {
		return
	}
	for i := range n {
		if dev, err := drv.Open(i, cuda.Options{}); err == nil {
			_ = dev.Close()
		}
	}
}
