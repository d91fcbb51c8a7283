package cuda

import (
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/kvlane/kvlane/internal/sys/headertest"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var header = headertest.Header{Feature: "cuda-headers", Include: "#include <cuda.h>"}

func TestLayoutsAreThoseOfTheHeader(t *testing.T) {
	var (
		loc   memLocation
		prop  memAllocationProp
		acc   memAccessDesc
		attrs memcpyAttributes
		rows  Memcpy2D
	)
	all := header.Layouts(map[string]uintptr{
		"CUmemLocation":                                       unsafe.Sizeof(loc),
		"CUmemLocation.type":                                  unsafe.Offsetof(loc.Type),
		"CUmemLocation.id":                                    unsafe.Offsetof(loc.ID),
		"CUmemAllocationProp":                                 unsafe.Sizeof(prop),
		"CUmemAllocationProp.type":                            unsafe.Offsetof(prop.Type),
		"CUmemAllocationProp.requestedHandleTypes":            unsafe.Offsetof(prop.RequestedHandles),
		"CUmemAllocationProp.location":                        unsafe.Offsetof(prop.Location),
		"CUmemAllocationProp.win32HandleMetaData":             unsafe.Offsetof(prop.Win32Meta),
		"CUmemAllocationProp.allocFlags.compressionType":      unsafe.Offsetof(prop.CompressionType),
		"CUmemAllocationProp.allocFlags.gpuDirectRDMACapable": unsafe.Offsetof(prop.GPUDirectRDMA),
		"CUmemAllocationProp.allocFlags.usage":                unsafe.Offsetof(prop.Usage),
		"CUmemAccessDesc":                                     unsafe.Sizeof(acc),
		"CUmemAccessDesc.location":                            unsafe.Offsetof(acc.Location),
		"CUmemAccessDesc.flags":                               unsafe.Offsetof(acc.Flags),
		"CUDA_MEMCPY2D":                                       unsafe.Sizeof(rows),
		"CUDA_MEMCPY2D.srcMemoryType":                         unsafe.Offsetof(rows.SrcType),
		"CUDA_MEMCPY2D.srcDevice":                             unsafe.Offsetof(rows.Src),
		"CUDA_MEMCPY2D.srcPitch":                              unsafe.Offsetof(rows.SrcPitch),
		"CUDA_MEMCPY2D.dstMemoryType":                         unsafe.Offsetof(rows.DstType),
		"CUDA_MEMCPY2D.dstDevice":                             unsafe.Offsetof(rows.Dst),
		"CUDA_MEMCPY2D.dstPitch":                              unsafe.Offsetof(rows.DstPitch),
		"CUDA_MEMCPY2D.WidthInBytes":                          unsafe.Offsetof(rows.WidthInBytes),
		"CUDA_MEMCPY2D.Height":                                unsafe.Offsetof(rows.Height),
		"CUdeviceptr":                                         unsafe.Sizeof(DevicePtr(0)),
		"CUdevice":                                            unsafe.Sizeof(DeviceID(0)),
		"CUmemGenericAllocationHandle":                        unsafe.Sizeof(MemHandle(0)),
		"CUresult":                                            unsafe.Sizeof(Success),
		"CUstreamCaptureMode":                                 unsafe.Sizeof(CaptureRelaxed),
		"CUstreamCaptureStatus":                               unsafe.Sizeof(CaptureNone),
		"CUuuid":                                              unsafe.Sizeof([16]byte{}),
	})
	young := header.Layouts(map[string]uintptr{
		"CUmemcpyAttributes":                unsafe.Sizeof(attrs),
		"CUmemcpyAttributes.srcAccessOrder": unsafe.Offsetof(attrs.SrcAccessOrder),
		"CUmemcpyAttributes.srcLocHint":     unsafe.Offsetof(attrs.SrcLocHint),
		"CUmemcpyAttributes.dstLocHint":     unsafe.Offsetof(attrs.DstLocHint),
		"CUmemcpyAttributes.flags":          unsafe.Offsetof(attrs.Flags),
	})
	header.Compile(t, all+"#if CUDA_VERSION >= 12080\n"+young+"#endif\n")
}

func TestConstantsAreThoseOfTheHeader(t *testing.T) {
	var c strings.Builder
	c.WriteString(headertest.Constants(map[string]int64{
		"CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT":                    int64(AttrMultiprocessorCount),
		"CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT":                      int64(AttrAsyncEngineCount),
		"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR":                int64(AttrComputeMajor),
		"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR":                int64(AttrComputeMinor),
		"CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS":           int64(AttrStreamMemOps64),
		"CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES":                 int64(AttrFlushRemoteWrites),
		"CU_STREAM_WAIT_VALUE_FLUSH":                                  int64(StreamWaitValueFlush),
		"CU_MEMORYTYPE_UNIFIED":                                       int64(MemTypeUnified),
		"CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK":                     int64(FuncMaxThreads),
		"(intptr_t)CU_STREAM_LEGACY":                                  int64(StreamLegacy),
		"(intptr_t)CU_STREAM_PER_THREAD":                              int64(StreamPerThread),
		"CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED": int64(AttrRDMAVirtualMemory),
		"CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS":    int64(AttrRDMAFlushOptions),
		"CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING":         int64(AttrRDMAOrdering),
		"CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED":                       int64(AttrDMABuf),
		"CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE":                     int64(RDMAScopeNone),
		"CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER":                    int64(RDMAScopeOwner),
		"CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES":              int64(RDMAScopeAllDevices),
		"CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER":                    int64(RDMAScopeOwner),
		"CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES":              int64(RDMAScopeAllDevices),
		"CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST":                 FlushByHost,
		"CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX":          flushTargetCurrent,
		"CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD":                         memRangeDMABuf,
		"CU_STREAM_NON_BLOCKING":                                      int64(StreamNonBlocking),
		"CU_STREAM_WAIT_VALUE_GEQ":                                    int64(StreamWaitValueGEQ),
		"CU_STREAM_WRITE_VALUE_DEFAULT":                               int64(StreamWriteValue),
		"CU_EVENT_DISABLE_TIMING":                                     int64(EventDisableTiming),
		"CU_MEMHOSTREGISTER_PORTABLE":                                 int64(HostRegisterPortable),
		"CU_MEMHOSTREGISTER_DEVICEMAP":                                int64(HostRegisterMapped),
		"CU_STREAM_CAPTURE_MODE_GLOBAL":                               int64(CaptureGlobal),
		"CU_STREAM_CAPTURE_MODE_RELAXED":                              int64(CaptureRelaxed),
		"CU_STREAM_CAPTURE_STATUS_NONE":                               int64(CaptureNone),
		"CU_MEM_ALLOCATION_TYPE_PINNED":                               memAllocationTypePinned,
		"CU_MEM_LOCATION_TYPE_DEVICE":                                 memLocationTypeDevice,
		"CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR":                    int64(MemHandlePosixFD),
		"CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS":                          ipcLazyPeerAccess,
		"CU_IPC_HANDLE_SIZE":                                          HandleBytes,
		"CU_MEM_ACCESS_FLAGS_PROT_READWRITE":                          memAccessReadWrite,
		"CU_MEM_ALLOC_GRANULARITY_MINIMUM":                            memGranularityMinimum,
		"CUDA_SUCCESS":                                                int64(Success),
		"CUDA_ERROR_INVALID_VALUE":                                    int64(ErrorInvalidValue),
		"CUDA_ERROR_OUT_OF_MEMORY":                                    int64(ErrorOutOfMemory),
		"CUDA_ERROR_NOT_INITIALIZED":                                  int64(ErrorNotInitialized),
		"CUDA_ERROR_DEINITIALIZED":                                    int64(ErrorDeinitialized),
		"CUDA_ERROR_STUB_LIBRARY":                                     int64(ErrorStubLibrary),
		"CUDA_ERROR_DEVICE_UNAVAILABLE":                               int64(ErrorDeviceUnavailable),
		"CUDA_ERROR_NO_DEVICE":                                        int64(ErrorNoDevice),
		"CUDA_ERROR_INVALID_DEVICE":                                   int64(ErrorInvalidDevice),
		"CUDA_ERROR_INVALID_IMAGE":                                    int64(ErrorInvalidImage),
		"CUDA_ERROR_INVALID_CONTEXT":                                  int64(ErrorInvalidContext),
		"CUDA_ERROR_NO_BINARY_FOR_GPU":                                int64(ErrorNoBinaryForGPU),
		"CUDA_ERROR_ECC_UNCORRECTABLE":                                int64(ErrorECCUncorrectable),
		"CUDA_ERROR_UNSUPPORTED_LIMIT":                                int64(ErrorUnsupportedLimit),
		"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED":                          int64(ErrorPeerAccessUnsupported),
		"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED":                      int64(ErrorPeerAccessAlreadyEnabled),
		"CUDA_ERROR_TOO_MANY_PEERS":                                   int64(ErrorTooManyPeers),
		"CUDA_ERROR_INVALID_PTX":                                      int64(ErrorInvalidPTX),
		"CUDA_ERROR_NVLINK_UNCORRECTABLE":                             int64(ErrorNVLinkUncorrectable),
		"CUDA_ERROR_JIT_COMPILER_NOT_FOUND":                           int64(ErrorJITCompilerNotFound),
		"CUDA_ERROR_UNSUPPORTED_PTX_VERSION":                          int64(ErrorUnsupportedPTXVersion),
		"CUDA_ERROR_JIT_COMPILATION_DISABLED":                         int64(ErrorJITDisabled),
		"CUDA_ERROR_INVALID_HANDLE":                                   int64(ErrorInvalidHandle),
		"CUDA_ERROR_NOT_FOUND":                                        int64(ErrorNotFound),
		"CUDA_ERROR_NOT_READY":                                        int64(ErrorNotReady),
		"CUDA_ERROR_ILLEGAL_ADDRESS":                                  int64(ErrorIllegalAddress),
		"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES":                          int64(ErrorLaunchOutOfResources),
		"CUDA_ERROR_LAUNCH_TIMEOUT":                                   int64(ErrorLaunchTimeout),
		"CUDA_ERROR_CONTEXT_IS_DESTROYED":                             int64(ErrorContextIsDestroyed),
		"CUDA_ERROR_ASSERT":                                           int64(ErrorAssert),
		"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED":                   int64(ErrorHostAlreadyRegistered),
		"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED":                       int64(ErrorHostNotRegistered),
		"CUDA_ERROR_HARDWARE_STACK_ERROR":                             int64(ErrorHardwareStack),
		"CUDA_ERROR_ILLEGAL_INSTRUCTION":                              int64(ErrorIllegalInstruction),
		"CUDA_ERROR_MISALIGNED_ADDRESS":                               int64(ErrorMisalignedAddress),
		"CUDA_ERROR_INVALID_ADDRESS_SPACE":                            int64(ErrorInvalidAddressSpace),
		"CUDA_ERROR_INVALID_PC":                                       int64(ErrorInvalidPC),
		"CUDA_ERROR_LAUNCH_FAILED":                                    int64(ErrorLaunchFailed),
		"CUDA_ERROR_NOT_PERMITTED":                                    int64(ErrorNotPermitted),
		"CUDA_ERROR_NOT_SUPPORTED":                                    int64(ErrorNotSupported),
		"CUDA_ERROR_SYSTEM_NOT_READY":                                 int64(ErrorSystemNotReady),
		"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH":                           int64(ErrorSystemDriverMismatch),
		"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE":                   int64(ErrorCompatNotSupported),
		"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED":                       int64(ErrorStreamCaptureUnsupported),
		"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT":                          int64(ErrorStreamCaptureImplicit),
		"CUDA_ERROR_UNKNOWN":                                          int64(ErrorUnknown),
	}))
	fmt.Fprintf(&c, "#if CUDA_VERSION >= 12080\n_Static_assert(CUDA_ERROR_CONTAINED == %d, \"contained\");\n", ErrorContained)
	fmt.Fprintf(&c, "_Static_assert(CU_MEM_HANDLE_TYPE_FABRIC == %d && sizeof(CUmemFabricHandle) == %d, \"fabric\");\n", MemHandleFabric, HandleBytes)
	fmt.Fprintf(&c, "_Static_assert(CUDA_ERROR_TENSOR_MEMORY_LEAK == %d, \"tensor memory leak\");\n", ErrorTensorMemoryLeak)
	fmt.Fprintf(&c, "_Static_assert(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM == %d, \"access order\");\n#endif\n", memcpySrcOrderStream)
	header.Compile(t, c.String())
}

// TestSignaturesAreThoseOfTheHeader compares the parameters that bind.go passes for each symbol
// with the header. The C compiler rejects an incompatible prototype.
func TestSignaturesAreThoseOfTheHeader(t *testing.T) {
	var c strings.Builder
	c.WriteString(headertest.Signatures(map[string]string{
		"cuGetErrorName":                    "CUresult (*f)(CUresult, const char **)",
		"cuGetErrorString":                  "CUresult (*f)(CUresult, const char **)",
		"cuInit":                            "CUresult (*f)(unsigned)",
		"cuDriverGetVersion":                "CUresult (*f)(int *)",
		"cuDeviceGetCount":                  "CUresult (*f)(int *)",
		"cuDeviceGet":                       "CUresult (*f)(CUdevice *, int)",
		"cuDeviceGetName":                   "CUresult (*f)(char *, int, CUdevice)",
		"cuDeviceGetPCIBusId":               "CUresult (*f)(char *, int, CUdevice)",
		"cuDeviceGetUuid_v2":                "CUresult (*f)(CUuuid *, CUdevice)",
		"cuDeviceTotalMem_v2":               "CUresult (*f)(size_t *, CUdevice)",
		"cuDeviceGetAttribute":              "CUresult (*f)(int *, CUdevice_attribute, CUdevice)",
		"cuDevicePrimaryCtxRetain":          "CUresult (*f)(CUcontext *, CUdevice)",
		"cuDevicePrimaryCtxRelease_v2":      "CUresult (*f)(CUdevice)",
		"cuCtxPushCurrent_v2":               "CUresult (*f)(CUcontext)",
		"cuCtxPopCurrent_v2":                "CUresult (*f)(CUcontext *)",
		"cuCtxGetCurrent":                   "CUresult (*f)(CUcontext *)",
		"cuCtxGetStreamPriorityRange":       "CUresult (*f)(int *, int *)",
		"cuThreadExchangeStreamCaptureMode": "CUresult (*f)(CUstreamCaptureMode *)",
		"cuDeviceCanAccessPeer":             "CUresult (*f)(int *, CUdevice, CUdevice)",
		"cuCtxEnablePeerAccess":             "CUresult (*f)(CUcontext, unsigned)",
		"cuMemAlloc_v2":                     "CUresult (*f)(CUdeviceptr *, size_t)",
		"cuMemFree_v2":                      "CUresult (*f)(CUdeviceptr)",
		"cuMemHostRegister_v2":              "CUresult (*f)(void *, size_t, unsigned)",
		"cuMemHostUnregister":               "CUresult (*f)(void *)",
		"cuMemHostGetDevicePointer_v2":      "CUresult (*f)(CUdeviceptr *, void *, unsigned)",
		"cuMemGetAllocationGranularity":     "CUresult (*f)(size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags)",
		"cuMemCreate":                       "CUresult (*f)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long)",
		"cuMemRelease":                      "CUresult (*f)(CUmemGenericAllocationHandle)",
		"cuMemAddressReserve":               "CUresult (*f)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)",
		"cuMemAddressFree":                  "CUresult (*f)(CUdeviceptr, size_t)",
		"cuMemMap":                          "CUresult (*f)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long)",
		"cuMemUnmap":                        "CUresult (*f)(CUdeviceptr, size_t)",
		"cuMemSetAccess":                    "CUresult (*f)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t)",
		"cuMemGetAddressRange_v2":           "CUresult (*f)(CUdeviceptr *, size_t *, CUdeviceptr)",
		"cuMemRetainAllocationHandle":       "CUresult (*f)(CUmemGenericAllocationHandle *, void *)",
		"cuMemExportToShareableHandle":      "CUresult (*f)(void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long)",
		"cuMemImportFromShareableHandle":    "CUresult (*f)(CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType)",
		"cuIpcGetMemHandle":                 "CUresult (*f)(CUipcMemHandle *, CUdeviceptr)",
		"cuIpcOpenMemHandle_v2":             "CUresult (*f)(CUdeviceptr *, CUipcMemHandle, unsigned)",
		"cuIpcCloseMemHandle":               "CUresult (*f)(CUdeviceptr)",
		"cuStreamCreateWithPriority":        "CUresult (*f)(CUstream *, unsigned, int)",
		"cuStreamDestroy_v2":                "CUresult (*f)(CUstream)",
		"cuStreamQuery":                     "CUresult (*f)(CUstream)",
		"cuStreamWaitEvent":                 "CUresult (*f)(CUstream, CUevent, unsigned)",
		"cuStreamIsCapturing":               "CUresult (*f)(CUstream, CUstreamCaptureStatus *)",
		"cuStreamGetCtx":                    "CUresult (*f)(CUstream, CUcontext *)",
		"cuFuncGetAttribute":                "CUresult (*f)(int *, CUfunction_attribute, CUfunction)",
		"cuStreamBeginCapture_v2":           "CUresult (*f)(CUstream, CUstreamCaptureMode)",
		"cuStreamEndCapture":                "CUresult (*f)(CUstream, CUgraph *)",
		"cuGraphDestroy":                    "CUresult (*f)(CUgraph)",
		"cuEventCreate":                     "CUresult (*f)(CUevent *, unsigned)",
		"cuEventDestroy_v2":                 "CUresult (*f)(CUevent)",
		"cuEventRecord":                     "CUresult (*f)(CUevent, CUstream)",
		"cuEventQuery":                      "CUresult (*f)(CUevent)",
		"cuMemcpyAsync":                     "CUresult (*f)(CUdeviceptr, CUdeviceptr, size_t, CUstream)",
		"cuMemcpy2DAsync_v2":                "CUresult (*f)(const CUDA_MEMCPY2D *, CUstream)",
		"cuMemsetD8Async":                   "CUresult (*f)(CUdeviceptr, unsigned char, size_t, CUstream)",
		"cuModuleLoadData":                  "CUresult (*f)(CUmodule *, const void *)",
		"cuModuleUnload":                    "CUresult (*f)(CUmodule)",
		"cuModuleGetFunction":               "CUresult (*f)(CUfunction *, CUmodule, const char *)",
		"cuLaunchKernel":                    "CUresult (*f)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)",
		"cuGetProcAddress_v2":               "CUresult (*f)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *)",
		"cuStreamWaitValue64_v2":            "CUresult (*f)(CUstream, CUdeviceptr, cuuint64_t, unsigned)",
		"cuStreamWriteValue64_v2":           "CUresult (*f)(CUstream, CUdeviceptr, cuuint64_t, unsigned)",
		"cuMemGetHandleForAddressRange":     "CUresult (*f)(void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long)",
		"cuFlushGPUDirectRDMAWrites":        "CUresult (*f)(CUflushGPUDirectRDMAWritesTarget, CUflushGPUDirectRDMAWritesScope)",
	}))
	c.WriteString("#if CUDA_VERSION >= 12040\nCUresult (*load)(CUfunction) = cuFuncLoad;\n#endif\n")
	// cuGetProcAddress is called with the signature of 12.8. Newer headers declare a later one
	// under the same name.
	c.WriteString("#if CUDA_VERSION >= 12080 && CUDA_VERSION < 13000\n" +
		"CUresult (*batch)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *, size_t *, size_t, size_t *, CUstream)" +
		" = cuMemcpyBatchAsync;\n#endif\n")
	header.Compile(t, c.String())
}
