package cuda

// API is a table of the driver's functions. Load sets the fields; tests may set their own
// functions. The fields must not change while the API is in use. Each field is named after its C
// function; comments describe differences. Optional fields are nil if the driver does not have the
// function.
//
// "Needs a context" means that the context of the objects must be current on the calling thread.
type API struct {
	// Results. ErrorName and ErrorText return "" for unknown codes.
	ErrorName func(r Result) string
	ErrorText func(r Result) string

	// Driver and devices. They need no context. Init must be called first.
	Init               func(flags uint32) Result
	DriverGetVersion   func() (int, Result) // 1000*major + 10*minor of its CUDA version
	DeviceGetCount     func() (int, Result)
	DeviceGet          func(ordinal int) (DeviceID, Result)
	DeviceGetName      func(dev DeviceID) (string, Result)
	DeviceGetUUID      func(dev DeviceID) ([16]byte, Result)
	DeviceGetPCIBusID  func(dev DeviceID) (string, Result)
	DeviceTotalMem     func(dev DeviceID) (uint64, Result)
	DeviceGetAttribute func(attr Attribute, dev DeviceID) (int, Result)

	// Contexts. These functions change the state of the calling OS thread.
	DevicePrimaryCtxRetain          func(dev DeviceID) (Context, Result)
	DevicePrimaryCtxRelease         func(dev DeviceID) Result
	CtxPushCurrent                  func(ctx Context) Result
	CtxPopCurrent                   func() (Context, Result)
	CtxGetCurrent                   func() (Context, Result)
	CtxGetStreamPriorityRange       func() (least, greatest int, r Result) // needs a context
	ThreadExchangeStreamCaptureMode func(mode CaptureMode) (CaptureMode, Result)

	// Peer access. The context that will access the peer's memory must be current. It applies to
	// memory of MemAlloc; for memory of MemCreate use MemSetAccess.
	DeviceCanAccessPeer func(dev, peer DeviceID) (bool, Result)
	CtxEnablePeerAccess func(peer Context) Result

	// Memory. All except MemGetGranularity need a context.
	MemAlloc                func(bytes uint64) (DevicePtr, Result)
	MemFree                 func(p DevicePtr) Result
	MemHostRegister         func(addr, bytes uint64, flags uint32) Result
	MemHostUnregister       func(addr uint64) Result
	MemHostGetDevicePointer func(addr uint64) (DevicePtr, Result)
	MemGetGranularity       func(p MemProp) (uint64, Result) // minimum granularity of MemCreate
	MemCreate               func(bytes uint64, p MemProp) (MemHandle, Result)
	MemRelease              func(h MemHandle) Result
	MemAddressReserve       func(bytes uint64) (DevicePtr, Result)
	MemAddressFree          func(p DevicePtr, bytes uint64) Result
	MemMap                  func(p DevicePtr, bytes uint64, h MemHandle) Result
	MemUnmap                func(p DevicePtr, bytes uint64) Result
	// MemSetAccess permits reads and writes by dev.
	MemSetAccess func(p DevicePtr, bytes uint64, dev DeviceID) Result

	// Memory of other processes. All need a context. Handles other than file descriptors have
	// HandleBytes bytes. MemGetAddressRange returns the allocation or mapping that contains p.
	MemGetAddressRange func(p DevicePtr) (base DevicePtr, bytes uint64, r Result)
	// MemRetainHandle returns the handle of the mapping at p. Release it with MemRelease.
	MemRetainHandle func(p DevicePtr) (MemHandle, Result)
	// MemExportFD is cuMemExportToShareableHandle for a descriptor. The caller closes the
	// descriptor.
	MemExportFD     func(h MemHandle) (fd int, r Result)
	MemExportFabric func(h MemHandle) ([HandleBytes]byte, Result)
	// MemImportFD is cuMemImportFromShareableHandle for a descriptor. The caller closes the
	// descriptor.
	MemImportFD     func(fd int) (MemHandle, Result)
	MemImportFabric func(data *[HandleBytes]byte) (MemHandle, Result)
	IPCGetMemHandle func(p DevicePtr) ([HandleBytes]byte, Result)
	// IPCOpenMemHandle also permits the current context's device to access memory of a peer device.
	IPCOpenMemHandle  func(data *[HandleBytes]byte) (DevicePtr, Result)
	IPCCloseMemHandle func(p DevicePtr) Result

	// Streams and events. All except EventQuery need a context.
	StreamCreateWithPriority func(flags uint32, priority int) (Stream, Result)
	StreamDestroy            func(s Stream) Result
	// StreamQuery returns Success, ErrorNotReady, or the error of failed work.
	StreamQuery        func(s Stream) Result
	StreamWaitEvent    func(s Stream, e Event) Result
	StreamIsCapturing  func(s Stream) (CaptureStatus, Result)
	StreamGetCtx       func(s Stream) (Context, Result)
	StreamBeginCapture func(s Stream, mode CaptureMode) Result
	StreamEndCapture   func(s Stream) (Graph, Result)
	GraphDestroy       func(g Graph) Result
	EventCreate        func(flags uint32) (Event, Result)
	EventDestroy       func(e Event) Result
	EventRecord        func(e Event, s Stream) Result
	EventQuery         func(e Event) Result // results are those of StreamQuery

	// Work in streams. All need a context.
	MemcpyAsync func(dst, src DevicePtr, bytes uint64, s Stream) Result
	// The caller may reuse c after the call. c must be on the Go heap.
	Memcpy2DAsync     func(c *Memcpy2D, s Stream) Result
	MemsetD8Async     func(dst DevicePtr, v byte, bytes uint64, s Stream) Result
	ModuleLoadData    func(image []byte) (Module, Result) // a text image needs no terminating zero
	ModuleUnload      func(m Module) Result
	ModuleGetFunction func(m Module, name string) (Function, Result)
	FuncGetAttribute  func(attr FunctionAttribute, f Function) (int, Result)
	LaunchKernel      func(f Function, grid, block uint32, s Stream, p *KernelParams) Result

	// Optional, since CUDA 12.8. All sources are read in stream order. The slices have equal
	// lengths and must be on the Go heap. The caller may reuse them after the call.
	MemcpyBatchAsync func(dsts, srcs []DevicePtr, sizes []uint64, s Stream) Result
	// Optional.
	StreamWaitValue64  func(s Stream, addr DevicePtr, value uint64, flags uint32) Result
	StreamWriteValue64 func(s Stream, addr DevicePtr, value uint64, flags uint32) Result
	// Optional, since CUDA 12.4. It loads the function onto the device if it is not loaded yet. It
	// needs a context.
	FuncLoad func(f Function) Result
	// Optional. It is cuMemGetHandleForAddressRange for a dma-buf and needs a context. Address and
	// length must be multiples of the host's page size. The caller closes the descriptor.
	MemExportDMABuf func(p DevicePtr, bytes uint64) (fd int, r Result)
	// Optional. It is cuFlushGPUDirectRDMAWrites for the current context. It needs a context and
	// blocks.
	FlushGPUDirectRDMAWrites func(to RDMAScope) Result
}
