package host_test

import (
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/devicetest"
	"github.com/kvlane/kvlane/device/host"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func open(t *testing.T) device.Device {
	t.Helper()
	d, err := host.Open()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConformance(t *testing.T) { devicetest.Run(t, open) }
