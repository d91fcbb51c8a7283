package share_test

import (
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda"
)

// openGPU opens the GPU of that UUID, or none for host memory.
func openGPU(uuid string) (device.Device, error) {
	if uuid == "" {
		return nil, nil
	}
	drv, err := cuda.Load()
	if err != nil {
		return nil, err
	}
	return drv.OpenUUID(uuid, cuda.Options{})
}
