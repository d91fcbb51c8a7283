package cuda

import (
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
)

// Result is a CUresult.
type Result int32

// The results that kvlane handles.
const (
	Success                       Result = 0
	ErrorInvalidValue             Result = 1
	ErrorOutOfMemory              Result = 2
	ErrorNotInitialized           Result = 3
	ErrorDeinitialized            Result = 4
	ErrorStubLibrary              Result = 34
	ErrorDeviceUnavailable        Result = 46
	ErrorNoDevice                 Result = 100
	ErrorInvalidDevice            Result = 101
	ErrorInvalidImage             Result = 200
	ErrorInvalidContext           Result = 201
	ErrorNoBinaryForGPU           Result = 209
	ErrorECCUncorrectable         Result = 214
	ErrorUnsupportedLimit         Result = 215
	ErrorPeerAccessUnsupported    Result = 217
	ErrorInvalidPTX               Result = 218
	ErrorNVLinkUncorrectable      Result = 220
	ErrorJITCompilerNotFound      Result = 221
	ErrorUnsupportedPTXVersion    Result = 222
	ErrorJITDisabled              Result = 223
	ErrorContained                Result = 226
	ErrorInvalidHandle            Result = 400
	ErrorNotFound                 Result = 500
	ErrorNotReady                 Result = 600
	ErrorIllegalAddress           Result = 700
	ErrorLaunchOutOfResources     Result = 701
	ErrorLaunchTimeout            Result = 702
	ErrorPeerAccessAlreadyEnabled Result = 704
	ErrorContextIsDestroyed       Result = 709
	ErrorAssert                   Result = 710
	ErrorTooManyPeers             Result = 711
	ErrorHostAlreadyRegistered    Result = 712
	ErrorHostNotRegistered        Result = 713
	ErrorHardwareStack            Result = 714
	ErrorIllegalInstruction       Result = 715
	ErrorMisalignedAddress        Result = 716
	ErrorInvalidAddressSpace      Result = 717
	ErrorInvalidPC                Result = 718
	ErrorLaunchFailed             Result = 719
	ErrorTensorMemoryLeak         Result = 721
	ErrorNotPermitted             Result = 800
	ErrorNotSupported             Result = 801
	ErrorSystemNotReady           Result = 802
	ErrorSystemDriverMismatch     Result = 803
	ErrorCompatNotSupported       Result = 804
	ErrorStreamCaptureUnsupported Result = 900
	ErrorStreamCaptureImplicit    Result = 906
	ErrorUnknown                  Result = 999
)

// Sentinel returns the sentinel of package errdefs for the result, or nil if there is none.
func (r Result) Sentinel() error {
	switch r {
	case ErrorInvalidValue, ErrorInvalidDevice, ErrorInvalidContext, ErrorInvalidHandle, ErrorHostNotRegistered:
		return errdefs.ErrInvalid
	case ErrorOutOfMemory, ErrorLaunchOutOfResources, ErrorTooManyPeers:
		return errdefs.ErrNoMemory
	case ErrorHostAlreadyRegistered, ErrorPeerAccessAlreadyEnabled:
		return errdefs.ErrExists
	case ErrorNotFound:
		return errdefs.ErrNotFound
	case ErrorDeviceUnavailable:
		return errdefs.ErrBusy
	case ErrorNoDevice, ErrorStubLibrary, ErrorNotPermitted, ErrorNotSupported, ErrorSystemNotReady,
		ErrorSystemDriverMismatch, ErrorCompatNotSupported, ErrorPeerAccessUnsupported, ErrorInvalidImage, ErrorNoBinaryForGPU, ErrorUnsupportedLimit,
		ErrorInvalidPTX, ErrorJITCompilerNotFound, ErrorUnsupportedPTXVersion, ErrorJITDisabled,
		ErrorStreamCaptureUnsupported, ErrorStreamCaptureImplicit:
		return errdefs.ErrNotSupported
	case ErrorNotInitialized, ErrorDeinitialized, ErrorContextIsDestroyed:
		return errdefs.ErrClosed
	default:
		if r.Sticky() {
			return errdefs.ErrBroken
		}
		return nil
	}
}

// Sticky reports whether the result means that the context is unusable. The driver then returns the
// same error from every later call until the process ends. <cuda.h> documents these results
// ("leaves the process in an inconsistent state").
func (r Result) Sticky() bool {
	switch r {
	case ErrorECCUncorrectable, ErrorNVLinkUncorrectable, ErrorContained, ErrorIllegalAddress, ErrorLaunchTimeout, ErrorContextIsDestroyed,
		ErrorAssert, ErrorHardwareStack, ErrorIllegalInstruction, ErrorMisalignedAddress, ErrorInvalidAddressSpace,
		ErrorInvalidPC, ErrorLaunchFailed, ErrorTensorMemoryLeak, ErrorUnknown, ErrorDeinitialized:
		return true
	default:
		return false
	}
}

// String returns the number. Use API.ErrorName for the name.
func (r Result) String() string { return fmt.Sprintf("CUresult(%d)", int32(r)) }
