package cuda

import (
	"runtime"

	"github.com/kvlane/kvlane/internal/sys/cuda"
)

// enter makes the device's context current for the calls until leave. Pushing the context keeps the
// thread's own context, if it has one. The two calls add less to a copy than a query and a restore
// of the current context would.
func (d *Device) enter() error {
	runtime.LockOSThread()
	if r := d.api.CtxPushCurrent(d.ctx); r != cuda.Success {
		runtime.UnlockOSThread()
		return d.fail(r, "cuCtxPushCurrent_v2", "device=%d", d.info.Index)
	}
	return nil
}

// leave undoes enter. Popping fails only if the context is lost. leave then records the fault,
// because the device is unusable.
func (d *Device) leave() {
	_, r := d.api.CtxPopCurrent()
	runtime.UnlockOSThread()
	if r != cuda.Success {
		d.fault.CompareAndSwap(nil, nativeError(d.api, r, "cuCtxPopCurrent_v2", "device=%d", d.info.Index))
	}
}

// enterRelaxed is enter for calls that are forbidden while another thread captures a graph. It
// returns the mode for leaveRelaxed.
func (d *Device) enterRelaxed() (cuda.CaptureMode, error) {
	if err := d.enter(); err != nil {
		return 0, err
	}
	before, r := d.api.ThreadExchangeStreamCaptureMode(cuda.CaptureRelaxed)
	if r != cuda.Success {
		d.leave()
		return 0, d.fail(r, "cuThreadExchangeStreamCaptureMode", "mode=relaxed")
	}
	return before, nil
}

// leaveRelaxed undoes enterRelaxed.
func (d *Device) leaveRelaxed(before cuda.CaptureMode) {
	if _, r := d.api.ThreadExchangeStreamCaptureMode(before); r != cuda.Success {
		d.fault.CompareAndSwap(nil, nativeError(d.api, r, "cuThreadExchangeStreamCaptureMode", "mode=%d", before))
	}
	d.leave()
}
