package kvlane

import (
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
)

// OpenDevice opens the device that c selects. With Auto it takes the GPU where the machine has one, and the simulated
// device where it has none; the note then says why, and is empty otherwise. The caller closes the device.
func OpenDevice(c DeviceConfig) (d device.Device, note string, err error) {
	if err := c.validate(); err != nil {
		return nil, "", err
	}
	switch c.Driver {
	case Sim:
		d, err = openSim(c)
		return d, "", err
	case CUDA:
		d, err = openCUDA(c.Index)
		return d, "", err
	case Auto, "":
	}
	d, err = openCUDA(c.Index)
	if err == nil {
		return d, "", nil
	}
	// Only the absence of a GPU is a reason to simulate one; a GPU that fails to open is not.
	if !errors.Is(err, errdefs.ErrNotSupported) {
		return nil, "", err
	}
	note = fmt.Sprintf("no GPU is used, the simulated device takes its place: %v", err)
	d, err = openSim(c)
	return d, note, err
}

func openSim(c DeviceConfig) (device.Device, error) {
	if c.Index != 0 {
		return nil, fmt.Errorf("open simulated device %d: there is one, with index 0: %w", c.Index, errdefs.ErrNotFound)
	}
	return sim.Open(c.Sim)
}

func openCUDA(index int) (device.Device, error) {
	drv, err := cuda.Load()
	if err != nil {
		return nil, err // it says what it was doing
	}
	n, err := drv.Count()
	if err != nil {
		return nil, fmt.Errorf("count CUDA devices: %w", err)
	}
	if n == 0 {
		return nil, fmt.Errorf("the CUDA driver is there but sees no device: %w", errdefs.ErrNotSupported)
	}
	return drv.Open(index, cuda.Options{})
}
