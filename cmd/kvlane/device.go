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

// chooseDriver returns the driver that a value of --device means, and if that is the simulated device for want of a GPU, why there is
// none to use.
func chooseDriver(device string) (driver kvlane.Driver, noGPU error) {
	if device != autoDevice {
		return kvlane.Driver(device), nil
	}
	if err := missingGPU(); err != nil {
		return kvlane.Sim, err
	}
	return kvlane.CUDA, nil
}

// missingGPU returns why there is no GPU to use, or nil. Only the absence of one counts; a GPU that fails to open is there.
func missingGPU() error {
	if _, err := cuda.Load(); errors.Is(err, errdefs.ErrNotSupported) {
		return err
	}
	return nil
}

// simulatedNote says in a report for programs that a GPU was simulated.
func simulatedNote(noGPU error) string {
	return fmt.Sprintf("SIMULATED DEVICE: there is no GPU to use: %v", noGPU)
}

// saySimulated says it to people, or nothing where noGPU is nil.
func saySimulated(w io.Writer, noGPU error) error {
	if noGPU == nil {
		return nil
	}
	return sayNote(w, noDriver(noGPU)+" Using the simulated GPU; figures are not hardware.")
}

// sayNote says to people what a command went without, before its report.
func sayNote(w io.Writer, note string) error {
	p := present.NewPage(present.ScreenOf(w))
	p.Verdict(present.Warn, "%s", note)
	return p.Write(w)
}

// noDriver says in a sentence why there is no GPU to use.
func noDriver(err error) string {
	var missing *dl.MissingError
	if !errors.As(err, &missing) {
		return fmt.Sprintf("No GPU to use: %v.", err)
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

// noGPUError is why there is no GPU to use, where the command line asks for one.
type noGPUError struct{ err error }

func (e *noGPUError) Error() string { return noDriver(e.err) }
func (e *noGPUError) Unwrap() error { return e.err }

// orNoGPU makes the error of a device that is not to be had a sentence without Go's words, where the machine has no GPU at all.
func orNoGPU(driver kvlane.Driver, err error) error {
	if driver != kvlane.CUDA || !errors.Is(err, errdefs.ErrNotSupported) {
		return err
	}
	if noGPU := missingGPU(); noGPU != nil {
		return &noGPUError{noGPU}
	}
	return err
}
