package sim

import (
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
)

// native returns the error that a driver would return. The codes are those of CUDA for the same
// failure.
func native(call, args string, code int, name, text string, kind error) *device.Error {
	return &device.Error{Call: call, Args: args, Code: code, Name: "SIM_ERROR_" + name, Text: text, Kind: kind}
}

func errInvalidValue(call, args, text string) error {
	return native(call, args, 1, "INVALID_VALUE", text, errdefs.ErrInvalid)
}

func errOutOfMemory(call, args, text string) error {
	return native(call, args, 2, "OUT_OF_MEMORY", text, errdefs.ErrNoMemory)
}

func errClosed(call string) error {
	return native(call, "", 4, "DEINITIALIZED", "the device is closed", errdefs.ErrClosed)
}

func errIllegalAddress(call, args, text string) error {
	return native(call, args, 700, "ILLEGAL_ADDRESS", text, errdefs.ErrInvalid)
}

// errInjected returns the driver error for a fault.
func errInjected(call string, f *fault.Fault) error {
	return fmt.Errorf("%w: %w", native(call, "", 999, "UNKNOWN", "", nil), f.Err)
}
