package sim

import (
	"fmt"

	"github.com/kvlane/kvlane/device/internal/kernel"
	"github.com/kvlane/kvlane/mem"
)

// piece checks a copy and returns its addresses.
func (d *Device) piece(call string, dst, src mem.Extent) (kernel.Piece, error) {
	if err := d.checkExtent(call, dst); err != nil {
		return kernel.Piece{}, fmt.Errorf("destination: %w", err)
	}
	if err := d.checkExtent(call, src); err != nil {
		return kernel.Piece{}, fmt.Errorf("source: %w", err)
	}
	if dst.Len != src.Len {
		return kernel.Piece{}, errInvalidValue(call, fmt.Sprintf("dst bytes=%d, src bytes=%d", dst.Len, src.Len), "the lengths differ")
	}
	return kernel.Piece{Dst: dst.Dev(), Src: src.Dev(), N: uint64(src.Len)}, nil
}

// checkExtent returns the errors of an extent that can be detected before its use.
func (d *Device) checkExtent(call string, e mem.Extent) error {
	if err := e.Validate(); err != nil {
		return errInvalidExtent(call, err)
	}
	r := e.Region
	if r.Dev() == 0 {
		return errInvalidValue(call, "region="+r.String(), "it has no device address")
	}
	o := d.owner(r)
	o.space.mu.RLock()
	defer o.space.mu.RUnlock()
	if !o.space.holds(r) {
		return errInvalidValue(call, "region="+r.String(), o.whyNotMine(r))
	}
	return nil
}

func errInvalidExtent(call string, err error) error {
	return fmt.Errorf("%w: %w", errInvalidValue(call, "", ""), err)
}
