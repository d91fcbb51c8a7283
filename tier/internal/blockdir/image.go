package blockdir

import (
	"fmt"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// Image returns the bytes of an extent for the image of a block. It returns ErrInvalid if the
// extent does not have the length of the image, or if the CPU cannot access it.
func Image(formats block.Formats, key block.Key, e mem.Extent) ([]byte, error) {
	f, err := formats.Of(key)
	if err != nil {
		return nil, err
	}
	if err := e.Validate(); err != nil {
		return nil, err
	}
	if n := f.Layout.ImageBytes(); e.Len != n {
		return nil, fmt.Errorf("the extent has %d bytes, an image %d: %w", e.Len, n, errdefs.ErrInvalid)
	}
	b := e.Bytes()
	if b == nil {
		return nil, fmt.Errorf("the CPU cannot reach the %s: %w", e.Region, errdefs.ErrInvalid)
	}
	return b, nil
}
