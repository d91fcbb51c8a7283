package device

import (
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// HandleType is a type of handle with which another process maps memory.
type HandleType uint8

// The types of handles, in order of preference.
const (
	// HandleFabric is a handle of 64 bytes. It also works across hosts of one NVLink domain, and
	// needs an IMEX channel.
	HandleFabric  HandleType = iota + 1
	HandlePosixFD            // a file descriptor of the driver
	// HandleCUDAIPC is a handle of 64 bytes, for memory of cuMemAlloc. A process cannot open its
	// own handles.
	HandleCUDAIPC
	// HandleMemFD is a file in memory: host memory, or the memory of a simulated device.
	HandleMemFD
)

// HandleTypes returns all types, in order of preference.
func HandleTypes() []HandleType {
	return []HandleType{HandleFabric, HandlePosixFD, HandleCUDAIPC, HandleMemFD}
}

var handleNames = map[HandleType]string{
	HandleFabric: "fabric", HandlePosixFD: "posix-fd", HandleCUDAIPC: "cuda-ipc", HandleMemFD: "memfd",
}

// String returns the type's name, as used in descriptors and reports.
func (t HandleType) String() string {
	if name, ok := handleNames[t]; ok {
		return name
	}
	return fmt.Sprintf("handle(%d)", uint8(t))
}

// MarshalText returns the name.
func (t HandleType) MarshalText() ([]byte, error) {
	name, ok := handleNames[t]
	if !ok {
		return nil, fmt.Errorf("unknown handle type %d: %w", uint8(t), errdefs.ErrInvalid)
	}
	return []byte(name), nil
}

// UnmarshalText sets t from a name.
func (t *HandleType) UnmarshalText(text []byte) error {
	for _, known := range HandleTypes() {
		if string(text) == known.String() {
			*t = known
			return nil
		}
	}
	return fmt.Errorf("unknown handle type %q: %w", text, errdefs.ErrInvalid)
}

// IsFD reports whether a handle of this type is a file descriptor. Handles of other types are
// HandleBytes bytes.
func (t HandleType) IsFD() bool { return t == HandlePosixFD || t == HandleMemFD }

// HandleBytes is the length of handles that are not descriptors.
const HandleBytes = 64

// Handle lets another process map a whole allocation, even if only a part of it was exported.
type Handle struct {
	Type   HandleType
	Device string            // UUID of the device of the memory; empty for host memory
	FD     int               // if Type.IsFD; the owner of the handle closes it
	Data   [HandleBytes]byte // used if not Type.IsFD
	Bytes  int64             // length of the allocation
	Off    int64             // offset of the exported region in the allocation
}

// Sharer is a Device with memory that other processes can map, and that can map theirs.
type Sharer interface {
	Device
	// HandleTypes returns the types for which the device has driver calls, in order of preference.
	// Only an attempt shows whether a type works.
	HandleTypes() []HandleType
	// ExportMemory returns a handle of type t of the allocation that contains r, including
	// allocations of the host program. The caller owns its FD. While a descriptor is open, the
	// memory stays in use even if it is freed. ExportMemory returns ErrNotSupported with the reason
	// for memory that has no such handle or spans several allocations. It returns ErrInvalid for
	// memory of the host or of another device.
	ExportMemory(r *mem.Region, t HandleType) (Handle, error)
	// ImportMemory maps the allocation of h for this device only. The region has the length of the
	// allocation and kind device. Its Device is that of h.Device if the device is visible to the
	// process, or DeviceElsewhere. Free unmaps it. The caller still owns h.
	ImportMemory(h Handle) (*mem.Region, error)
}

// DeviceElsewhere is the Region.Device of memory of a device that is not visible to this process.
const DeviceElsewhere = 1 << 30
