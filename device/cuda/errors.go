package cuda

import (
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/cuda"
)

// nativeError describes what the driver answered. format and args give the arguments of the call that matter.
func nativeError(api *cuda.API, r cuda.Result, call, format string, args ...any) *device.Error {
	e := &device.Error{
		Call: call,
		Args: fmt.Sprintf(format, args...),
		Code: int(r),
		Name: api.ErrorName(r),
		Text: api.ErrorText(r),
		Kind: r.Sentinel(),
	}
	if e.Name == "" {
		e.Name = r.String() // a driver newer than this program, or a code of none
	}
	return e
}

// fail returns the error for r, which is not Success, and remembers it if the context is lost.
func (d *Device) fail(r cuda.Result, call, format string, args ...any) error {
	err := nativeError(d.api, r, call, format, args...)
	if r.Sticky() {
		d.fault.CompareAndSwap(nil, err)
	}
	return err
}

// check is fail for a result that may be Success. Its arguments cost allocations: not for hot paths.
func (d *Device) check(r cuda.Result, call, format string, args ...any) error {
	if r == cuda.Success {
		return nil
	}
	return d.fail(r, call, format, args...)
}

// broken returns the error of the fault that ended the context, or nil.
func (d *Device) broken() error {
	if f := d.fault.Load(); f != nil {
		return fmt.Errorf("device %d: %w: %w", d.info.Index, errdefs.ErrBroken, f)
	}
	return nil
}
