package kvlane

import (
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda"
	"github.com/kvlane/kvlane/device/host"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
)

// OpenDevice opens the device that c selects. If there is no usable GPU, the error wraps
// ErrNotSupported and states the next step. The caller closes the device.
func OpenDevice(c DeviceConfig) (device.Device, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	switch c.Driver {
	case Sim:
		return openSim(c)
	case Host:
		return openHost(c)
	case CUDA:
	}
	d, err := openCUDA(c.Index)
	if errors.Is(err, errdefs.ErrNotSupported) {
		return nil, fmt.Errorf("no GPU can be used: install an NVIDIA driver; or name another device driver: \"host\" for an engine on the CPU, \"sim\" (a simulated GPU) for tests: %w", err)
	}
	return d, err
}

func openSim(c DeviceConfig) (device.Device, error) {
	if c.Index != 0 {
		return nil, fmt.Errorf("open simulated device %d: only device 0 exists: %w", c.Index, errdefs.ErrNotFound)
	}
	return sim.Open(c.Sim)
}

func openHost(c DeviceConfig) (device.Device, error) {
	if c.Index != 0 {
		return nil, fmt.Errorf("open host device %d: only device 0 exists: %w", c.Index, errdefs.ErrNotFound)
	}
	return host.Open()
}

func openCUDA(index int) (device.Device, error) {
	drv, err := cuda.Load()
	if err != nil {
		return nil, err // the error names the operation
	}
	return drv.Open(index, cuda.Options{})
}

func (d *DeviceConfig) validate() error {
	switch d.Driver {
	case "", CUDA, Sim, Host:
	default:
		return fmt.Errorf("unknown device driver %q: must be cuda, sim or host: %w", d.Driver, errdefs.ErrInvalid)
	}
	if d.Index < 0 {
		return fmt.Errorf("device index %d is negative: %w", d.Index, errdefs.ErrInvalid)
	}
	return nil
}
