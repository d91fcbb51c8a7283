//go:build nonic

package transfer

import (
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rdma/rail"
)

func softNICs(tb testing.TB, _ device.Device, _ int) *rail.NICs {
	tb.Helper()
	testkit.Skip(tb, "nics", "this build has no code for NICs")
	return nil
}

func targetNICs() (*rail.NICs, func() error, error) { return nil, func() error { return nil }, nil }
