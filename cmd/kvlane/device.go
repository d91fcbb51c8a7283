package main

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
)

// autoDevice is the value of --device that takes the GPU if there is one, and else the simulated device. Only commands of which
// nobody takes figures for those of a GPU have it.
const autoDevice = "auto"

func registerAutoDevice(flags *pflag.FlagSet, device *string) {
	flags.StringVar(device, "device", autoDevice, "auto, cuda, sim (simulated GPU) or host (CPU); auto is cuda if there is a GPU, else sim")
}

// registerDevice registers the flag of commands that measure: they simulate a GPU, or do without one, only by name.
func registerDevice(flags *pflag.FlagSet, device *string) {
	flags.StringVar(device, "device", string(kvlane.CUDA), "cuda, sim, or host: the CPU and its memory")
}

// chooseDriver returns the driver that a value of --device means, and if that is the simulated device for want of a GPU, a line that
// says so.
func chooseDriver(device string) (driver kvlane.Driver, simulates string) {
	if device != autoDevice {
		return kvlane.Driver(device), ""
	}
	// Only the absence of a GPU is a reason to simulate one; a GPU that fails to open is not.
	if _, err := cuda.Load(); errors.Is(err, errdefs.ErrNotSupported) {
		return kvlane.Sim, fmt.Sprintf("SIMULATED DEVICE: there is no GPU to use: %v", err)
	}
	return kvlane.CUDA, ""
}

// openDevice opens the device of a command that measures.
func openDevice(driver string, index int, o sim.Options) (device.Device, error) {
	c := kvlane.DeviceConfig{Driver: kvlane.Driver(driver), Index: index, Sim: o}
	dev, err := kvlane.OpenDevice(c)
	return dev, asUsage(orSimulate(c.Driver, err))
}

// orSimulate adds to the error of a device that is not to be had how to measure without a GPU.
func orSimulate(driver kvlane.Driver, err error) error {
	if driver == kvlane.CUDA && errors.Is(err, errdefs.ErrNotSupported) {
		return fmt.Errorf("%w; --device sim measures the simulated device (figures are not hardware), --device host the CPU", err)
	}
	return err
}
