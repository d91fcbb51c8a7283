package cufile

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
)

// Status is a CUfileOpError.
type Status int32

// The statuses that kvlane handles.
const (
	Success                 Status = 0
	DriverNotInitialized    Status = 5001
	DriverVersionMismatch   Status = 5004
	DriverVersionReadError  Status = 5005
	DriverClosing           Status = 5006
	PlatformNotSupported    Status = 5007
	IONotSupported          Status = 5008
	DeviceNotSupported      Status = 5009
	CUDADriverError         Status = 5011
	CUDAPointerInvalid      Status = 5012
	CUDAMemoryTypeInvalid   Status = 5013
	CUDAPointerRangeError   Status = 5014
	InvalidMappingSize      Status = 5016
	InvalidMappingRange     Status = 5017
	InvalidFileType         Status = 5018
	InvalidFileOpenFlag     Status = 5019
	DIONotSet               Status = 5020
	InvalidValue            Status = 5022
	MemoryAlreadyRegistered Status = 5023
	MemoryNotRegistered     Status = 5024
	PermissionDenied        Status = 5025
	DriverAlreadyOpen       Status = 5026
	HandleNotRegistered     Status = 5027
	HandleAlreadyRegistered Status = 5028
	DeviceNotFound          Status = 5029
	GetNewFDFailed          Status = 5031
	NVFSSetupError          Status = 5033
	IODisabled              Status = 5034
	GPUMemoryPinningFailed  Status = 5036
	AsyncNotSupported       Status = 5038
)

// names are the library's names of statuses, without the prefix CU_FILE_.
var names = map[Status]string{
	0: "SUCCESS", 5001: "DRIVER_NOT_INITIALIZED", 5002: "DRIVER_INVALID_PROPS", 5003: "DRIVER_UNSUPPORTED_LIMIT",
	5004: "DRIVER_VERSION_MISMATCH", 5005: "DRIVER_VERSION_READ_ERROR", 5006: "DRIVER_CLOSING", 5007: "PLATFORM_NOT_SUPPORTED",
	5008: "IO_NOT_SUPPORTED", 5009: "DEVICE_NOT_SUPPORTED", 5010: "NVFS_DRIVER_ERROR", 5011: "CUDA_DRIVER_ERROR",
	5012: "CUDA_POINTER_INVALID", 5013: "CUDA_MEMORY_TYPE_INVALID", 5014: "CUDA_POINTER_RANGE_ERROR", 5015: "CUDA_CONTEXT_MISMATCH",
	5016: "INVALID_MAPPING_SIZE", 5017: "INVALID_MAPPING_RANGE", 5018: "INVALID_FILE_TYPE", 5019: "INVALID_FILE_OPEN_FLAG",
	5020: "DIO_NOT_SET", 5022: "INVALID_VALUE", 5023: "MEMORY_ALREADY_REGISTERED", 5024: "MEMORY_NOT_REGISTERED",
	5025: "PERMISSION_DENIED", 5026: "DRIVER_ALREADY_OPEN", 5027: "HANDLE_NOT_REGISTERED", 5028: "HANDLE_ALREADY_REGISTERED",
	5029: "DEVICE_NOT_FOUND", 5030: "INTERNAL_ERROR", 5031: "GETNEWFD_FAILED", 5033: "NVFS_SETUP_ERROR", 5034: "IO_DISABLED",
	5035: "BATCH_SUBMIT_FAILED", 5036: "GPU_MEMORY_PINNING_FAILED", 5037: "BATCH_FULL", 5038: "ASYNC_NOT_SUPPORTED", 5039: "IO_MAX_ERROR",
}

// String returns the library's name for s.
func (s Status) String() string {
	if name, ok := names[s]; ok {
		return "CU_FILE_" + name
	}
	return fmt.Sprintf("CUfileOpError(%d)", int32(s))
}

// Sentinel returns the sentinel of package errdefs for the status, or nil if there is none.
func (s Status) Sentinel() error {
	switch s {
	case DriverNotInitialized, DriverVersionMismatch, DriverVersionReadError, PlatformNotSupported, IONotSupported, DeviceNotSupported,
		InvalidFileType, InvalidFileOpenFlag, DIONotSet, PermissionDenied, HandleNotRegistered, DeviceNotFound, GetNewFDFailed, NVFSSetupError, IODisabled, AsyncNotSupported:
		return errdefs.ErrNotSupported
	case CUDAPointerInvalid, CUDAMemoryTypeInvalid, CUDAPointerRangeError, InvalidMappingRange, InvalidValue:
		return errdefs.ErrInvalid
	case MemoryAlreadyRegistered, HandleAlreadyRegistered, DriverAlreadyOpen:
		return errdefs.ErrExists
	case MemoryNotRegistered:
		return errdefs.ErrNotFound
	case InvalidMappingSize, GPUMemoryPinningFailed:
		return errdefs.ErrNoMemory
	case DriverClosing:
		return errdefs.ErrClosed
	case Success, CUDADriverError:
	}
	return nil
}

// Result is a CUfileError_t.
type Result struct {
	Status Status
	CUDA   int32 // a CUresult, if Status is CUDADriverError
}

// Err returns nil for success, otherwise a *device.Error. format and args describe the arguments of
// the call.
func (r Result) Err(call, format string, args ...any) error {
	if r.Status == Success {
		return nil
	}
	e := &device.Error{
		Call: call, Args: fmt.Sprintf(format, args...), Code: int(r.Status), Name: r.Status.String(), Kind: r.Status.Sentinel(),
	}
	if r.Status == CUDADriverError {
		e.Text = fmt.Sprintf("CUresult %d", r.CUDA)
	}
	return e
}

// Moved converts the result n of a transfer to a number of bytes or an error. n is a number of
// bytes, -1 with errno set, or a negated Status or errno.
func Moved(n int64, errno unix.Errno, call, format string, args ...any) (int64, error) {
	switch {
	case n >= 0:
		return n, nil
	case n == -1 && errno != 0:
		return 0, fmt.Errorf("%s(%s): %w", call, fmt.Sprintf(format, args...), errno)
	case n == -1:
		return 0, fmt.Errorf("%s(%s): the system call failed without a reason from the library: %w", call, fmt.Sprintf(format, args...), unix.EIO)
	}
	if -n < int64(DriverNotInitialized) {
		return 0, fmt.Errorf("%s(%s): %w", call, fmt.Sprintf(format, args...), unix.Errno(-n))
	}
	return 0, Result{Status: Status(-n)}.Err(call, format, args...)
}
