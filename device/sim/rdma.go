package sim

import (
	"fmt"

	"github.com/kvlane/kvlane/device"
)

// OpFlush is the operation that Options.Faults counts for Device.FlushRemoteWrites.
const OpFlush = "flush-remote-writes"

var _ device.RemoteWriteFlusher = (*Device)(nil)

// NeedsFlush implements device.RemoteWriteFlusher: it answers Options.RemoteWritesNeedFlush.
func (d *Device) NeedsFlush() (bool, error) {
	if d.isClosed() {
		return false, fmt.Errorf("ask for the order of NICs' writes: %w", errClosed("simDeviceGetAttribute"))
	}
	return d.o.RemoteWritesNeedFlush, nil
}

// FlushRemoteWrites implements device.RemoteWriteFlusher. There is nothing to do, since simulated memory is written at once.
func (d *Device) FlushRemoteWrites() error {
	const call = "simFlushGPUDirectRDMAWrites"
	if f, hit := d.o.Faults.Hit(OpFlush); hit {
		return fmt.Errorf("flush NICs' writes: %w", errInjected(call, &f))
	}
	if d.isClosed() {
		return fmt.Errorf("flush NICs' writes: %w", errClosed(call))
	}
	return nil
}
