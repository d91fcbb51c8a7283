package device

import (
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// HandleType says by what sort of handle another process maps memory.
type HandleType uint8

// The types of handle, in the order in which they are preferred.
const (
	HandleFabric  HandleType = iota + 1 // 64 bytes, also across hosts of one NVLink domain; needs an IMEX channel
	HandlePosixFD                       // a file descriptor of the driver's
	HandleCUDAIPC                       // 64 bytes, for memory of cuMemAlloc; no process opens its own
	HandleMemFD                         // a file in memory: of the host, or what stands for a simulated device's memory
)

// HandleTypes returns all types, in the order in which they are preferred.
func HandleTypes() []HandleType {
	return []HandleType{HandleFabric, HandlePosixFD, HandleCUDAIPC, HandleMemFD}
}

var handleNames = map[HandleType]string{
	HandleFabric: "fabric", HandlePosixFD: "posix-fd", HandleCUDAIPC: "cuda-ipc", HandleMemFD: "memfd",
}

// String returns the type's name, as descriptors and reports have it.
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
		return nil, fmt.Errorf("there is no handle type %d: %w", uint8(t), errdefs.ErrInvalid)
	}
	return []byte(name), nil
}

// UnmarshalText takes a name.
func (t *HandleType) UnmarshalText(text []byte) error {
	for _, known := range HandleTypes() {
		if string(text) == known.String() {
			*t = known
			return nil
		}
	}
	return fmt.Errorf("there is no handle type %q: %w", text, errdefs.ErrInvalid)
}

// IsFD reports whether a handle of this type is a file descriptor; the others are HandleBytes bytes.
func (t HandleType) IsFD() bool { return t == HandlePosixFD || t == HandleMemFD }

// HandleBytes is the length of handles that are no descriptors.
const HandleBytes = 64

// Handle is what another process maps an allocation by: all of it, whatever part was asked for.
type Handle struct {
	Type   HandleType
	Device string            // UUID of the device that has the memory; empty for the host's
	FD     int               // where Type.IsFD: its owner closes it
	Data   [HandleBytes]byte // otherwise
	Bytes  int64             // of the allocation
	Off    int64             // in it, of the region that was exported
}

// Sharer is a Device whose memory other processes can map, and that maps theirs.
type Sharer interface {
	Device
	// HandleTypes returns the types that the device has the calls for, the preferred first. Whether one works, only trying tells.
	HandleTypes() []HandleType
	// ExportMemory returns a handle of type t of the allocation that r lies in, whoever made it. Its FD is the caller's. Memory stays
	// in use while a descriptor of it is open, whatever was freed. ErrNotSupported, with the reason, for memory that has no such
	// handle, or lies in several allocations; ErrInvalid for memory of the host or of another device.
	ExportMemory(r *mem.Region, t HandleType) (Handle, error)
	// ImportMemory maps the allocation behind h for this device alone. The region is as long as the allocation, of kind device,
	// and its Device is that of h.Device where the process has it, else DeviceElsewhere; Free unmaps it. h stays the caller's.
	ImportMemory(h Handle) (*mem.Region, error)
}

// DeviceElsewhere is the Region.Device of memory of a device that this process does not see.
const DeviceElsewhere = 1 << 30
