package cuda

import (
	"runtime"

	"github.com/kvlane/kvlane/internal/sys/cuda"
)

// pushContext makes the device's context current for the calls until popContext. Pushing keeps the
// thread's own context, if there is one. The two calls take less time than querying and restoring
// the current context.
func (d *Device) pushContext() error {
	runtime.LockOSThread()
	if r := d.api.CtxPushCurrent(d.ctx); r != cuda.Success {
		runtime.UnlockOSThread()
		return d.fail(r, "cuCtxPushCurrent_v2", "device=%d", d.info.Index)
	}
	return nil
}

// popContext undoes pushContext. It fails only if the context is lost. It then records the fault,
// because the device is unusable.
func (d *Device) popContext() {
	_, r := d.api.CtxPopCurrent()
	runtime.UnlockOSThread()
	if r != cuda.Success {
		d.fault.CompareAndSwap(nil, nativeError(d.api, r, "cuCtxPopCurrent_v2", "device=%d", d.info.Index))
	}
}

// pushContextRelaxed is pushContext for calls that are forbidden while another thread captures a
// graph. It returns the mode for popContextRelaxed.
func (d *Device) pushContextRelaxed() (cuda.CaptureMode, error) {
	if err := d.pushContext(); err != nil {
		return 0, err
	}
	before, r := d.api.ThreadExchangeStreamCaptureMode(cuda.CaptureRelaxed)
	if r != cuda.Success {
		d.popContext()
		return 0, d.fail(r, "cuThreadExchangeStreamCaptureMode", "mode=relaxed")
	}
	return before, nil
}

// popContextRelaxed undoes pushContextRelaxed.
func (d *Device) popContextRelaxed(before cuda.CaptureMode) {
	if _, r := d.api.ThreadExchangeStreamCaptureMode(before); r != cuda.Success {
		d.fault.CompareAndSwap(nil, nativeError(d.api, r, "cuThreadExchangeStreamCaptureMode", "mode=%d", before))
	}
	d.popContext()
}
