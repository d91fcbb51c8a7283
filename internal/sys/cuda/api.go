package cuda

// API is the driver's functions. Load fills it; a test may fill one of its own. Fields are not to be changed while
// the API is in use. Each field is named after the function that it calls and says what differs from it; those under
// "optional" are nil where the driver has no such function.
//
// "Needs a context" means: the context that the objects belong to is current on the calling thread.
type API struct {
	// Results. ErrorName and ErrorText answer "" for codes that the driver does not know.
	ErrorName func(r Result) string
	ErrorText func(r Result) string

	// The driver and its devices. No context needed; Init comes first.
	Init               func(flags uint32) Result
	DriverGetVersion   func() (int, Result) // 1000*major + 10*minor of the CUDA version it speaks
	DeviceGetCount     func() (int, Result)
	DeviceGet          func(ordinal int) (DeviceID, Result)
	DeviceGetName      func(dev DeviceID) (string, Result)
	DeviceGetUUID      func(dev DeviceID) ([16]byte, Result)
	DeviceGetPCIBusID  func(dev DeviceID) (string, Result)
	DeviceTotalMem     func(dev DeviceID) (uint64, Result)
	DeviceGetAttribute func(attr Attribute, dev DeviceID) (int, Result)

	// Contexts. They change the calling OS thread's state.
	DevicePrimaryCtxRetain          func(dev DeviceID) (Context, Result)
	DevicePrimaryCtxRelease         func(dev DeviceID) Result
	CtxPushCurrent                  func(ctx Context) Result
	CtxPopCurrent                   func() (Context, Result)
	CtxGetCurrent                   func() (Context, Result)
	CtxGetStreamPriorityRange       func() (least, greatest int, r Result) // needs a context
	ThreadExchangeStreamCaptureMode func(mode CaptureMode) (CaptureMode, Result)

	// Peers. Enabling needs the context that will reach the peer's memory to be current; it is for memory of MemAlloc,
	// that of MemCreate has MemSetAccess.
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
	MemSetAccess            func(p DevicePtr, bytes uint64, dev DeviceID) Result // read and write, for dev

	// Memory of other processes. All need a context. Handles that are no descriptors are HandleBytes long.
	MemGetAddressRange func(p DevicePtr) (base DevicePtr, bytes uint64, r Result) // of the allocation, or the mapping, that p is in
	MemRetainHandle    func(p DevicePtr) (MemHandle, Result)                      // of what is mapped at p; MemRelease gives it back
	MemExportFD        func(h MemHandle) (fd int, r Result)                       // cuMemExportToShareableHandle; the descriptor is the caller's
	MemExportFabric    func(h MemHandle) ([HandleBytes]byte, Result)
	MemImportFD        func(fd int) (MemHandle, Result) // cuMemImportFromShareableHandle; the descriptor stays the caller's
	MemImportFabric    func(data *[HandleBytes]byte) (MemHandle, Result)
	IPCGetMemHandle    func(p DevicePtr) ([HandleBytes]byte, Result)
	IPCOpenMemHandle   func(data *[HandleBytes]byte) (DevicePtr, Result) // with access of the current context's device to a peer's memory
	IPCCloseMemHandle  func(p DevicePtr) Result

	// Streams and events. All but EventQuery need a context.
	StreamCreateWithPriority func(flags uint32, priority int) (Stream, Result)
	StreamDestroy            func(s Stream) Result
	StreamQuery              func(s Stream) Result // Success or ErrorNotReady, or why work failed
	StreamWaitEvent          func(s Stream, e Event) Result
	StreamIsCapturing        func(s Stream) (CaptureStatus, Result)
	StreamGetCtx             func(s Stream) (Context, Result)
	StreamBeginCapture       func(s Stream, mode CaptureMode) Result
	StreamEndCapture         func(s Stream) (Graph, Result)
	GraphDestroy             func(g Graph) Result
	EventCreate              func(flags uint32) (Event, Result)
	EventDestroy             func(e Event) Result
	EventRecord              func(e Event, s Stream) Result
	EventQuery               func(e Event) Result // as StreamQuery

	// Work. All need a context.
	MemcpyAsync       func(dst, src DevicePtr, bytes uint64, s Stream) Result
	Memcpy2DAsync     func(c *Memcpy2D, s Stream) Result // c is on the Go heap, and free again when it returns
	MemsetD8Async     func(dst DevicePtr, v byte, bytes uint64, s Stream) Result
	ModuleLoadData    func(image []byte) (Module, Result) // text images need no terminating zero
	ModuleUnload      func(m Module) Result
	ModuleGetFunction func(m Module, name string) (Function, Result)
	FuncGetAttribute  func(attr FunctionAttribute, f Function) (int, Result)
	LaunchKernel      func(f Function, grid, block uint32, s Stream, p *KernelParams) Result

	// Optional: CUDA 12.8. All copies read their sources in the stream's order. The slices have one length, are on the
	// Go heap, and are free again when it returns.
	MemcpyBatchAsync func(dsts, srcs []DevicePtr, sizes []uint64, s Stream) Result
	// Optional.
	StreamWaitValue64  func(s Stream, addr DevicePtr, value uint64, flags uint32) Result
	StreamWriteValue64 func(s Stream, addr DevicePtr, value uint64, flags uint32) Result
	// Optional: CUDA 12.4. It loads the function onto the device, if that was not done. It needs a context.
	FuncLoad func(f Function) Result
	// Optional: cuMemGetHandleForAddressRange, for a dma-buf. It needs a context. Address and length are multiples of the
	// host's page; the descriptor is the caller's.
	MemExportDMABuf func(p DevicePtr, bytes uint64) (fd int, r Result)
	// Optional: cuFlushGPUDirectRDMAWrites of the current context. It needs one, and blocks.
	FlushGPUDirectRDMAWrites func(to RDMAScope) Result
}
