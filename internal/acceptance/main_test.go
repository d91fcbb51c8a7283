package acceptance_test

import (
	"os"
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/device/cuda/cudatest"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) {
	if os.Getenv(prefillEnv) == "" {
		cudatest.UseDriverOnce()
		testkit.Main(m)
		return
	}
	if err := playPrefill(kvlane.Driver(os.Args[1]), os.Args[2], os.Args[3]); err != nil {
		panic(err)
	}
}
