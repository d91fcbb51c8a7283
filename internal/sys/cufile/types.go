package cufile

// Handle is a CUfileHandle_t.
type Handle uintptr

// descriptor is a CUfileDescr_t.
type descriptor struct {
	kind  int32
	_     int32
	fd    int32 // member of a union with a pointer
	_     int32
	fsOps uintptr
}

// handleTypeFD is CU_FILE_HANDLE_TYPE_OPAQUE_FD.
const handleTypeFD = 1

// Properties is a CUfileDrvProps_t. Sizes are in KiB.
type Properties struct {
	Major, Minor          uint32 // version of the kernel module nvidia-fs; zero if it is not loaded
	PollThreshold         uint64
	MaxDirectIO           uint64
	Status                uint32 // one bit for each type of storage that supports direct transfers
	Control               uint32
	Features              uint32
	MaxDeviceCache        uint32
	PerBufferCache        uint32
	MaxDevicePinned       uint32
	MaxBatch              uint32
	MaxBatchTimeoutMillis uint32
}

// Bits of Properties.Status: CUfileDriverStatusFlags.
const (
	StatusLustre  = 0
	StatusWeka    = 1
	StatusNFS     = 2
	StatusGPFS    = 3
	StatusNVMe    = 4
	StatusNVMeOF  = 5
	StatusSCSI    = 6
	StatusBeeGFS  = 9
	StatusNVMeP2P = 11
)

// ControlAllowCompat is the bit in Properties.Control that permits the compatibility mode.
const ControlAllowCompat = 1

// ParamForceCompat is CUFILE_PARAM_FORCE_COMPAT_MODE of CUFileBoolConfigParameter_t.
const ParamForceCompat = 2

// Words are the addresses of the words of an asynchronous transfer. The transfer reads Size
// (size_t) and both offsets (off_t) when it starts, and writes Moved (ssize_t) when it ends.
type Words struct{ Size, FileOffset, BufferOffset, Moved uintptr }
