package cuda

// Handles and addresses of the driver. They are never Go pointers.
type (
	// DevicePtr is a CUdeviceptr: an address that the GPU can use.
	DevicePtr uint64
	// DeviceID is a CUdevice.
	DeviceID int32
	// Context is a CUcontext.
	Context uintptr
	// Stream is a CUstream; zero is the default stream.
	Stream uintptr
	// Event is a CUevent.
	Event uintptr
	// Module is a CUmodule.
	Module uintptr
	// Function is a CUfunction.
	Function uintptr
	// Graph is a CUgraph.
	Graph uintptr
	// MemHandle is a CUmemGenericAllocationHandle.
	MemHandle uint64
)

// Attribute is a CUdevice_attribute.
type Attribute int32

// Attributes of a device.
const (
	AttrMultiprocessorCount Attribute = 16
	AttrAsyncEngineCount    Attribute = 40
	AttrComputeMajor        Attribute = 75
	AttrComputeMinor        Attribute = 76
	AttrStreamMemOps64      Attribute = 122 // cuStreamWaitValue64
	AttrFlushRemoteWrites   Attribute = 98  // a stream's wait for a value can flush NIC writes
	AttrRDMAVirtualMemory   Attribute = 110 // NICs can access memory of cuMemCreate
	AttrRDMAFlushOptions    Attribute = 117 // ways to flush NIC writes, for example FlushByHost
	// AttrRDMAOrdering is an RDMAScope: the scope in which NIC writes are visible without a flush.
	AttrRDMAOrdering Attribute = 118
	AttrDMABuf       Attribute = 124 // memory can be exported as a dma-buf
)

// FunctionAttribute is a CUfunction_attribute.
type FunctionAttribute int32

// FuncMaxThreads is the maximum number of threads per block of a function. Querying it loads the
// function.
const FuncMaxThreads FunctionAttribute = 0

// Predefined streams of <cuda.h>.
const (
	StreamLegacy    Stream = 1 // the default stream of the current context, like zero
	StreamPerThread Stream = 2 // the default stream of the calling thread
)

// RDMAScope is a CUGPUDirectRDMAWritesOrdering or a CUflushGPUDirectRDMAWritesScope: the scope in
// which NIC writes to device memory are visible. Wider scopes have larger numbers.
type RDMAScope int32

// The scopes.
const (
	RDMAScopeNone       RDMAScope = 0
	RDMAScopeOwner      RDMAScope = 100 // the device itself
	RDMAScopeAllDevices RDMAScope = 200
)

// FlushByHost is CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST, a bit of AttrRDMAFlushOptions.
const FlushByHost = 1

// Flags, named after <cuda.h>.
const (
	// CU_STREAM_NON_BLOCKING: no implicit synchronization with the default stream
	StreamNonBlocking  uint32 = 1
	StreamWaitValueGEQ uint32 = 0 // CU_STREAM_WAIT_VALUE_GEQ: (int64)(*addr - value) >= 0
	// CU_STREAM_WAIT_VALUE_FLUSH: NIC writes before the value are visible after it
	StreamWaitValueFlush uint32 = 1 << 30
	// CU_STREAM_WRITE_VALUE_DEFAULT: earlier writes of the stream are visible before it
	StreamWriteValue     uint32 = 0
	EventDisableTiming   uint32 = 2 // CU_EVENT_DISABLE_TIMING
	HostRegisterPortable uint32 = 1 // CU_MEMHOSTREGISTER_PORTABLE: pinned for every context
	HostRegisterMapped   uint32 = 2 // CU_MEMHOSTREGISTER_DEVICEMAP: has a device address
)

// CaptureMode is a CUstreamCaptureMode. It restricts a thread while other threads capture.
type CaptureMode int32

// The capture modes.
const (
	CaptureGlobal  CaptureMode = 0
	CaptureRelaxed CaptureMode = 2
)

// CaptureStatus is a CUstreamCaptureStatus.
type CaptureStatus int32

// CaptureNone means that a stream is not capturing.
const CaptureNone CaptureStatus = 0

// Constants for the memory management structures.
const (
	memAllocationTypePinned = 1 // CU_MEM_ALLOCATION_TYPE_PINNED
	memLocationTypeDevice   = 1 // CU_MEM_LOCATION_TYPE_DEVICE
	memAccessReadWrite      = 3 // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	memGranularityMinimum   = 0 // CU_MEM_ALLOC_GRANULARITY_MINIMUM
	memcpySrcOrderStream    = 1 // CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
	memRangeDMABuf          = 1 // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
	flushTargetCurrent      = 0 // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX
	ipcLazyPeerAccess       = 1 // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
)

// MemHandleType is a CUmemAllocationHandleType.
type MemHandleType int32

// The handle types.
const (
	MemHandlePosixFD MemHandleType = 1 // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
	MemHandleFabric  MemHandleType = 8 // CU_MEM_HANDLE_TYPE_FABRIC
)

// HandleBytes is CU_IPC_HANDLE_SIZE, and the size of a CUmemFabricHandle.
const HandleBytes = 64

// MemProp describes the memory that MemCreate allocates.
type MemProp struct {
	Device DeviceID
	RDMA   bool          // NICs can access it
	Handle MemHandleType // export type
}

// memLocation is CUmemLocation.
type memLocation struct {
	Type int32
	ID   int32
}

// memAllocationProp is CUmemAllocationProp.
type memAllocationProp struct {
	Type             int32
	RequestedHandles int32
	Location         memLocation
	Win32Meta        uintptr
	CompressionType  uint8
	GPUDirectRDMA    uint8
	Usage            uint16
	_                [4]uint8
}

// memAccessDesc is CUmemAccessDesc.
type memAccessDesc struct {
	Location memLocation
	Flags    int32
}

// memcpyAttributes is CUmemcpyAttributes.
type memcpyAttributes struct {
	SrcAccessOrder int32
	SrcLocHint     memLocation
	DstLocHint     memLocation
	Flags          uint32
}

// MemTypeUnified means that an address of Memcpy2D is in the unified address space of CPU and GPUs.
const MemTypeUnified uint32 = 4

// Memcpy2D is CUDA_MEMCPY2D: Height rows of WidthInBytes bytes. The pitch is the distance between
// rows. The memory type of each side determines which of its three addresses is used.
type Memcpy2D struct {
	SrcXInBytes, SrcY uint64
	SrcType           uint32
	_                 uint32
	SrcHost           uintptr
	Src               DevicePtr
	SrcArray          uintptr
	SrcPitch          uint64

	DstXInBytes, DstY uint64
	DstType           uint32
	_                 uint32
	DstHost           uintptr
	Dst               DevicePtr
	DstArray          uintptr
	DstPitch          uint64

	WidthInBytes, Height uint64
}

// native converts p to the driver's structure.
func (p MemProp) native() memAllocationProp {
	n := memAllocationProp{
		Type:             memAllocationTypePinned,
		RequestedHandles: int32(p.Handle),
		Location:         memLocation{Type: memLocationTypeDevice, ID: int32(p.Device)},
	}
	if p.RDMA {
		n.GPUDirectRDMA = 1
	}
	return n
}
