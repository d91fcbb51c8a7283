package cuda

// API is the functions of the driver. Load fills it in; tests may fill in their own. Fields must
// not change while the API is in use. Each field has the name of its function, and its comment
// states differences. Fields under "optional" are nil if the driver lacks the function.
//
// "Needs a context" means that the context of the objects is current on the calling thread.
type API struct {
	// Results. ErrorName and ErrorText return "" for unknown codes.
	ErrorName func(r Result) string
	ErrorText func(r Result) string

	// The driver and its devices. They need no context. Init comes first.
	Init               func(flags uint32) Result
	DriverGetVersion   func() (int, Result) // 1000*major + 10*minor of its CUDA version
	DeviceGetCount     func() (int, Result)
	DeviceGet          func(ordinal int) (DeviceID, Result)
	DeviceGetName      func(dev DeviceID) (string, Result)
	DeviceGetUUID      func(dev DeviceID) ([16]byte, Result)
	DeviceGetPCIBusID  func(dev DeviceID) (string, Result)
	DeviceTotalMem     func(dev DeviceID) (uint64, Result)
	DeviceGetAttribute func(attr Attribute, dev DeviceID) (int, Result)

	// Contexts. They change the state of the calling OS thread.
	DevicePrimaryCtxRetain          func(dev DeviceID) (Context, Result)
	DevicePrimaryCtxRelease         func(dev DeviceID) Result
	CtxPushCurrent                  func(ctx Context) Result
	CtxPopCurrent                   func() (Context, Result)
	CtxGetCurrent                   func() (Context, Result)
	CtxGetStreamPriorityRange       func() (least, greatest int, r Result) // needs a context
	ThreadExchangeStreamCaptureMode func(mode CaptureMode) (CaptureMode, Result)

	// Peers. Enabling needs the context that will access the peer's memory to be current. It
	// applies to memory of MemAlloc; memory of MemCreate has MemSetAccess.
	DeviceCanAccessPeer func(dev, peer DeviceID) (bool, Result)
	CtxEnablePeerAccess func(peer Context) Result

	// Memory. All but the granularity need a context.
	MemAlloc                func(bytes uint64) (DevicePtr, Result)
	MemFree                 func(p DevicePtr) Result
	MemHostRegister         func(addr, bytes uint64, flags uint32) Result
	MemHostUnregister       func(addr uint64) Result
	MemHostGetDevicePointer func(addr uint64) (DevicePtr, Result)
	MemGetGranularity       func(p MemProp) (uint64, Result) // of MemCreate: the minimum
	MemCreate               func(bytes uint64, p MemProp) (MemHandle, Result)
	MemRelease              func(h MemHandle) Result
	MemAddressReserve       func(bytes uint64) (DevicePtr, Result)
	MemAddressFree          func(p DevicePtr, bytes uint64) Result
	MemMap                  func(p DevicePtr, bytes uint64, h MemHandle) Result
	MemUnmap                func(p DevicePtr, bytes uint64) Result
	// read and write, for dev
	MemSetAccess func(p DevicePtr, bytes uint64, dev DeviceID) Result

	// Memory of other processes. All need a context. Handles that are no descriptors are
	// HandleBytes long.
	// of the allocation, or the mapping, that p is in
	MemGetAddressRange func(p DevicePtr) (base DevicePtr, bytes uint64, r Result)
	// of the mapping at p; MemRelease releases it
	MemRetainHandle func(p DevicePtr) (MemHandle, Result)
	// cuMemExportToShareableHandle; the caller closes the descriptor
	MemExportFD     func(h MemHandle) (fd int, r Result)
	MemExportFabric func(h MemHandle) ([HandleBytes]byte, Result)
	// cuMemImportFromShareableHandle; the caller closes the descriptor
	MemImportFD     func(fd int) (MemHandle, Result)
	MemImportFabric func(data *[HandleBytes]byte) (MemHandle, Result)
	IPCGetMemHandle func(p DevicePtr) ([HandleBytes]byte, Result)
	// with access of the current context's device to a peer's memory
	IPCOpenMemHandle  func(data *[HandleBytes]byte) (DevicePtr, Result)
	IPCCloseMemHandle func(p DevicePtr) Result

	// Streams and events. All but EventQuery need a context.
	StreamCreateWithPriority func(flags uint32, priority int) (Stream, Result)
	StreamDestroy            func(s Stream) Result
	// Success, ErrorNotReady, or the error of failed work
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
	EventQuery         func(e Event) Result // as StreamQuery

	// Work. All need a context.
	MemcpyAsync func(dst, src DevicePtr, bytes uint64, s Stream) Result
	// c is on the Go heap and may be reused after the call
	Memcpy2DAsync     func(c *Memcpy2D, s Stream) Result
	MemsetD8Async     func(dst DevicePtr, v byte, bytes uint64, s Stream) Result
	ModuleLoadData    func(image []byte) (Module, Result) // text images need no terminating zero
	ModuleUnload      func(m Module) Result
	ModuleGetFunction func(m Module, name string) (Function, Result)
	FuncGetAttribute  func(attr FunctionAttribute, f Function) (int, Result)
	LaunchKernel      func(f Function, grid, block uint32, s Stream, p *KernelParams) Result

	// Optional: CUDA 12.8. All copies read their sources in stream order. The slices have equal
	// lengths, are on the Go heap, and may be reused after the call.
	MemcpyBatchAsync func(dsts, srcs []DevicePtr, sizes []uint64, s Stream) Result
	// Optional.
	StreamWaitValue64  func(s Stream, addr DevicePtr, value uint64, flags uint32) Result
	StreamWriteValue64 func(s Stream, addr DevicePtr, value uint64, flags uint32) Result
	// Optional: CUDA 12.4. It loads the function onto the device if necessary. It needs a context.
	FuncLoad func(f Function) Result
	// Optional: cuMemGetHandleForAddressRange, for a dma-buf. It needs a context. Address and
	// length are multiples of the host's page. The caller closes the descriptor.
	MemExportDMABuf func(p DevicePtr, bytes uint64) (fd int, r Result)
	// Optional: cuFlushGPUDirectRDMAWrites of the current context. It needs one, and blocks.
	FlushGPUDirectRDMAWrites func(to RDMAScope) Result
}
