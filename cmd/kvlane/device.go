package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/internal/sys/dl"
)

// autoDevice is the value of --device that selects the GPU, or the simulated device if there is no
// GPU. Commands that measure do not accept it, so that results of a simulated device are not
// mistaken for results of a GPU.
const autoDevice = "auto"

func registerAutoDevice(flags *pflag.FlagSet, device *string) {
	flags.StringVar(device, "device", autoDevice, "auto, cuda, sim (simulated GPU) or host (CPU); auto is cuda if there is a GPU, else sim")
}

// registerDevice registers the flag of commands that measure. They use the simulated device or the
// host only if the flag names it.
func registerDevice(flags *pflag.FlagSet, device *string) {
	flags.StringVar(device, "device", string(kvlane.CUDA), "cuda, sim, or host: the CPU and its memory")
}

// chooseDriver returns the driver for a value of --device. If auto selects the simulated device,
// noGPU is the reason.
func chooseDriver(device string) (driver kvlane.Driver, noGPU error) {
	if device != autoDevice {
		return kvlane.Driver(device), nil
	}
	if err := missingGPU(); err != nil {
		return kvlane.Sim, err
	}
	return kvlane.CUDA, nil
}

// missingGPU returns the reason for which no GPU is available, or nil. It does not open a GPU, so
// it returns nil for a GPU that cannot be opened.
func missingGPU() error {
	if _, err := cuda.Load(); errors.Is(err, errdefs.ErrNotSupported) {
		return err
	}
	return nil
}

// simulatedNote returns the note for JSON reports of a simulated GPU.
func simulatedNote(noGPU error) string {
	return fmt.Sprintf("SIMULATED DEVICE: no GPU is usable: %v", noGPU)
}

// printSimulated prints the note for text reports of a simulated GPU. It prints nothing if noGPU is
// nil.
func printSimulated(w io.Writer, noGPU error) error {
	if noGPU == nil {
		return nil
	}
	return printNote(w, noDriver(noGPU)+" Using the simulated GPU; figures are not hardware.")
}

// printNote prints a note about a fallback before the report of a command.
func printNote(w io.Writer, note string) error {
	p := present.NewPage(present.ScreenOf(w))
	p.Verdict(present.Warn, "%s", note)
	return p.Write(w)
}

// noDriver returns a sentence with the reason for which no GPU is available.
func noDriver(err error) string {
	var missing *dl.MissingError
	if !errors.As(err, &missing) {
		return fmt.Sprintf("No GPU is usable: %v.", err)
	}
	if lacks, gone := strings.CutSuffix(missing.Brief(), " not found"); gone {
		return fmt.Sprintf("No NVIDIA driver found (%s).", lacks)
	}
	return fmt.Sprintf("The NVIDIA driver cannot be loaded (%s).", missing.Brief())
}

// openDevice opens the device of a command that measures.
func openDevice(driver string, index int, o sim.Options) (device.Device, error) {
	c := kvlane.DeviceConfig{Driver: kvlane.Driver(driver), Index: index, Sim: o}
	dev, err := kvlane.OpenDevice(c)
	return dev, asUsage(orNoGPU(c.Driver, err))
}

// noGPUError is the error of a command that needs a GPU on a machine without one.
type noGPUError struct{ err error }

func (e *noGPUError) Error() string { return noDriver(e.err) }
func (e *noGPUError) Unwrap() error { return e.err }

// orNoGPU converts the error of opening a device to a noGPUError, whose text is a sentence, if the
// machine has no GPU.
func orNoGPU(driver kvlane.Driver, err error) error {
	if driver != kvlane.CUDA || !errors.Is(err, errdefs.ErrNotSupported) {
		return err
	}
	if noGPU := missingGPU(); noGPU != nil {
		return &noGPUError{noGPU}
	}
	return err
}
