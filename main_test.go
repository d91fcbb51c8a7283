package kvlane_test

import (
	"testing"

	"github.com/kvlane/kvlane/device/cuda/cudatest"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) {
	cudatest.UseDriverOnce()
	testkit.Main(m)
}
