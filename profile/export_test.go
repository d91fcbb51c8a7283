package profile

import (
	"context"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/stream/copy/calibrate"
)

// MeasureBy has devices measured by run until the test ends. Not for tests that run in parallel.
func MeasureBy(t *testing.T, run func(context.Context, device.Device, calibrate.Opener, calibrate.Options) (*calibrate.Result, error)) {
	t.Helper()
	before := measureDevice
	measureDevice = run
	t.Cleanup(func() { measureDevice = before })
}
