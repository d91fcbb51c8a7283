//go:build nonic

package gdr

import (
	"context"
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma/rail"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

// NICs are none in a build with the tag nonic: Open never returns any.
type NICs struct{}

var errNoCode = fmt.Errorf("this build has no code for NICs (build tag nonic): %w", errdefs.ErrNotSupported)

// Open is ErrNotSupported in a build with the tag nonic, and ErrInvalid where c is wrong in any build.
func Open(_ device.Device, c Config, _ func() (stream.Stream, error)) (*NICs, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return nil, errNoCode
}

// Identity names no NIC.
func (*NICs) Identity() string { return "" }

// Choices returns none.
func (*NICs) Choices() []Choice { return nil }

// Stats returns none.
func (*NICs) Stats() []stream.NICStats { return nil }

// Refused is false.
func Refused(error) bool { return false }

// Answered reports nothing.
func Answered(error) bool { return false }

// Register is ErrNotSupported.
func (*NICs) Register(...*mem.Region) error { return errNoCode }

// Unregister has nothing to take back.
func (*NICs) Unregister(context.Context, ...*mem.Region) error { return nil }

// Carrier returns nil.
func (*NICs) Carrier() *streamcopy.Carrier { return nil }

// OpenStream is ErrNotSupported.
func (*NICs) OpenStream() (stream.Stream, error) { return nil, errNoCode }

// Transfers is ErrNotSupported.
func (*NICs) Transfers() (*rail.NICs, error) { return nil, errNoCode }

// Close has nothing to close.
func (*NICs) Close(context.Context) error { return nil }
