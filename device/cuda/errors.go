package cuda

import (
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/cuda"
)

// nativeError converts a driver result to an error. format and args describe the relevant arguments
// of the call.
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
		e.Name = r.String() // the driver is newer than this program and does not know the code
	}
	return e
}

// fail returns the error for r, which is not Success. If r means that the context is lost, fail
// records it.
func (d *Device) fail(r cuda.Result, call, format string, args ...any) error {
	err := nativeError(d.api, r, call, format, args...)
	if r.Sticky() {
		d.fault.CompareAndSwap(nil, err)
	}
	return err
}

// check is fail for a result that may be Success. Its arguments are allocated, so do not use it in
// hot paths.
func (d *Device) check(r cuda.Result, call, format string, args ...any) error {
	if r == cuda.Success {
		return nil
	}
	return d.fail(r, call, format, args...)
}

// broken returns the error of the fault that made the context unusable, or nil.
func (d *Device) broken() error {
	if f := d.fault.Load(); f != nil {
		return fmt.Errorf("device %d: %w: %w", d.info.Index, errdefs.ErrBroken, f)
	}
	return nil
}
