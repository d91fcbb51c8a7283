//go:build nonic

package kvlane

import (
	"context"
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
)

// errNoNICCode is what everything that needs a NIC answers in this build.
var errNoNICCode = fmt.Errorf("this build has no code for NICs (build tag nonic): %w", errdefs.ErrNotSupported)

func newNICStack(*RDMAConfig, device.Device, func() (stream.Stream, error)) (nicStack, error) {
	return nil, errNoNICCode
}

// TryNICs is ErrNotSupported in a build with the tag nonic.
func TryNICs(context.Context, device.Device, RDMAConfig) ([]NICChoice, error) {
	return nil, errNoNICCode
}
