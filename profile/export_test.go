package profile

import (
	"context"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/stream/copy/calibrate"
)

// MeasureBy replaces the measurement of devices by run until the test ends. Tests that use it must
// not run in parallel.
func MeasureBy(t *testing.T, run func(context.Context, device.Device, calibrate.Opener, calibrate.Options) (*calibrate.Result, error)) {
	t.Helper()
	before := measureDevice
	measureDevice = run
	t.Cleanup(func() { measureDevice = before })
}
