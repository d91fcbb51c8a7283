package cuda

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// headers returns the folder with <cuda.h> and a C compiler, or skips the test.
func headers(t *testing.T) (cc, include string) {
	t.Helper()
	var folders []string
	for _, v := range []string{"CUDA_HOME", "CUDA_PATH"} {
		if home := os.Getenv(v); home != "" {
			folders = append(folders, filepath.Join(home, "include"))
		}
	}
	folders = append(folders, "/usr/local/cuda/include", "/usr/include")
	for _, f := range folders {
		if _, err := os.Stat(filepath.Join(f, "cuda.h")); err == nil {
			include = f
			break
		}
	}
	if include == "" {
		testkit.Skip(t, "cuda-headers", "no cuda.h in "+strings.Join(folders, ", "))
	}
	for _, name := range []string{"cc", "gcc", "clang"} {
		if cc, err := exec.LookPath(name); err == nil {
			return cc, include
		}
	}
	testkit.Skip(t, "cuda-headers", "no C compiler")
	return "", ""
}

// compile makes C check the body of a translation unit that includes <cuda.h>.
func compile(t *testing.T, body string) {
	t.Helper()
	cc, include := headers(t)
	src := filepath.Join(t.TempDir(), "check.c")
	if err := os.WriteFile(src, []byte("#include <stddef.h>\n#include <stdint.h>\n#include <cuda.h>\n"+body), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), cc, "-std=gnu11", "-fsyntax-only", "-Werror", "-I"+include, src).CombinedOutput()
	if err != nil {
		t.Errorf("%s with %s/cuda.h: %v\n%s", cc, include, err, firstLines(out, 40))
	}
}

func firstLines(b []byte, n int) []byte {
	lines := bytes.SplitAfterN(b, []byte("\n"), n+1)
	return bytes.Join(lines[:min(n, len(lines))], nil)
}

func TestLayoutsAreThoseOfTheHeader(t *testing.T) {
	var c strings.Builder
	size := func(name string, got uintptr) {
		fmt.Fprintf(&c, "_Static_assert(sizeof(%s) == %d, \"size of %s\");\n", name, got, name)
	}
	offset := func(name, field string, got uintptr) {
		fmt.Fprintf(&c, "_Static_assert(offsetof(%s, %s) == %d, \"%s.%s\");\n", name, field, got, name, field)
	}
	var (
		loc   memLocation
		prop  memAllocationProp
		acc   memAccessDesc
		attrs memcpyAttributes
	)
	size("CUmemLocation", unsafe.Sizeof(loc))
	offset("CUmemLocation", "type", unsafe.Offsetof(loc.Type))
	offset("CUmemLocation", "id", unsafe.Offsetof(loc.ID))
	size("CUmemAllocationProp", unsafe.Sizeof(prop))
	offset("CUmemAllocationProp", "type", unsafe.Offsetof(prop.Type))
	offset("CUmemAllocationProp", "requestedHandleTypes", unsafe.Offsetof(prop.RequestedHandles))
	offset("CUmemAllocationProp", "location", unsafe.Offsetof(prop.Location))
	offset("CUmemAllocationProp", "win32HandleMetaData", unsafe.Offsetof(prop.Win32Meta))
	offset("CUmemAllocationProp", "allocFlags.compressionType", unsafe.Offsetof(prop.CompressionType))
	offset("CUmemAllocationProp", "allocFlags.gpuDirectRDMACapable", unsafe.Offsetof(prop.GPUDirectRDMA))
	offset("CUmemAllocationProp", "allocFlags.usage", unsafe.Offsetof(prop.Usage))
	size("CUmemAccessDesc", unsafe.Sizeof(acc))
	offset("CUmemAccessDesc", "location", unsafe.Offsetof(acc.Location))
	offset("CUmemAccessDesc", "flags", unsafe.Offsetof(acc.Flags))
	size("CUdeviceptr", unsafe.Sizeof(DevicePtr(0)))
	size("CUdevice", unsafe.Sizeof(DeviceID(0)))
	size("CUmemGenericAllocationHandle", unsafe.Sizeof(MemHandle(0)))
	size("CUresult", unsafe.Sizeof(Success))
	size("CUstreamCaptureMode", unsafe.Sizeof(CaptureRelaxed))
	size("CUstreamCaptureStatus", unsafe.Sizeof(CaptureNone))
	size("CUuuid", unsafe.Sizeof([16]byte{}))
	c.WriteString("#if CUDA_VERSION >= 12080\n")
	size("CUmemcpyAttributes", unsafe.Sizeof(attrs))
	offset("CUmemcpyAttributes", "srcAccessOrder", unsafe.Offsetof(attrs.SrcAccessOrder))
	offset("CUmemcpyAttributes", "srcLocHint", unsafe.Offsetof(attrs.SrcLocHint))
	offset("CUmemcpyAttributes", "dstLocHint", unsafe.Offsetof(attrs.DstLocHint))
	offset("CUmemcpyAttributes", "flags", unsafe.Offsetof(attrs.Flags))
	c.WriteString("#endif\n")
	compile(t, c.String())
}

func TestConstantsAreThoseOfTheHeader(t *testing.T) {
	var c strings.Builder
	for name, got := range map[string]int64{
		"CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT":                    int64(AttrMultiprocessorCount),
		"CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT":                      int64(AttrAsyncEngineCount),
		"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR":                int64(AttrComputeMajor),
		"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR":                int64(AttrComputeMinor),
		"CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS":           int64(AttrStreamMemOps64),
		"CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES":                 int64(AttrFlushRemoteWrites),
		"CU_STREAM_WAIT_VALUE_FLUSH":                                  int64(StreamWaitValueFlush),
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
	} {
		fmt.Fprintf(&c, "_Static_assert(%s == %d, \"%s\");\n", name, got, name)
	}
	fmt.Fprintf(&c, "#if CUDA_VERSION >= 12080\n_Static_assert(CUDA_ERROR_CONTAINED == %d, \"contained\");\n", ErrorContained)
	fmt.Fprintf(&c, "_Static_assert(CU_MEM_HANDLE_TYPE_FABRIC == %d && sizeof(CUmemFabricHandle) == %d, \"fabric\");\n", MemHandleFabric, HandleBytes)
	fmt.Fprintf(&c, "_Static_assert(CUDA_ERROR_TENSOR_MEMORY_LEAK == %d, \"tensor memory leak\");\n", ErrorTensorMemoryLeak)
	fmt.Fprintf(&c, "_Static_assert(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM == %d, \"access order\");\n#endif\n", memcpySrcOrderStream)
	compile(t, c.String())
}

// The parameters that bind.go passes, for each symbol that it looks up. An incompatible prototype does not compile.
func TestSignaturesAreThoseOfTheHeader(t *testing.T) {
	var c strings.Builder
	for i, f := range []struct{ name, params string }{
		{"cuGetErrorName", "CUresult, const char **"},
		{"cuGetErrorString", "CUresult, const char **"},
		{"cuInit", "unsigned"},
		{"cuDriverGetVersion", "int *"},
		{"cuDeviceGetCount", "int *"},
		{"cuDeviceGet", "CUdevice *, int"},
		{"cuDeviceGetName", "char *, int, CUdevice"},
		{"cuDeviceGetPCIBusId", "char *, int, CUdevice"},
		{"cuDeviceGetUuid_v2", "CUuuid *, CUdevice"},
		{"cuDeviceTotalMem_v2", "size_t *, CUdevice"},
		{"cuDeviceGetAttribute", "int *, CUdevice_attribute, CUdevice"},
		{"cuDevicePrimaryCtxRetain", "CUcontext *, CUdevice"},
		{"cuDevicePrimaryCtxRelease_v2", "CUdevice"},
		{"cuCtxPushCurrent_v2", "CUcontext"},
		{"cuCtxPopCurrent_v2", "CUcontext *"},
		{"cuCtxGetCurrent", "CUcontext *"},
		{"cuCtxGetStreamPriorityRange", "int *, int *"},
		{"cuThreadExchangeStreamCaptureMode", "CUstreamCaptureMode *"},
		{"cuDeviceCanAccessPeer", "int *, CUdevice, CUdevice"},
		{"cuCtxEnablePeerAccess", "CUcontext, unsigned"},
		{"cuMemAlloc_v2", "CUdeviceptr *, size_t"},
		{"cuMemFree_v2", "CUdeviceptr"},
		{"cuMemHostRegister_v2", "void *, size_t, unsigned"},
		{"cuMemHostUnregister", "void *"},
		{"cuMemHostGetDevicePointer_v2", "CUdeviceptr *, void *, unsigned"},
		{"cuMemGetAllocationGranularity", "size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags"},
		{"cuMemCreate", "CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long"},
		{"cuMemRelease", "CUmemGenericAllocationHandle"},
		{"cuMemAddressReserve", "CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long"},
		{"cuMemAddressFree", "CUdeviceptr, size_t"},
		{"cuMemMap", "CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long"},
		{"cuMemUnmap", "CUdeviceptr, size_t"},
		{"cuMemSetAccess", "CUdeviceptr, size_t, const CUmemAccessDesc *, size_t"},
		{"cuMemGetAddressRange_v2", "CUdeviceptr *, size_t *, CUdeviceptr"},
		{"cuMemRetainAllocationHandle", "CUmemGenericAllocationHandle *, void *"},
		{"cuMemExportToShareableHandle", "void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long"},
		{"cuMemImportFromShareableHandle", "CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType"},
		{"cuIpcGetMemHandle", "CUipcMemHandle *, CUdeviceptr"},
		{"cuIpcOpenMemHandle_v2", "CUdeviceptr *, CUipcMemHandle, unsigned"},
		{"cuIpcCloseMemHandle", "CUdeviceptr"},
		{"cuStreamCreateWithPriority", "CUstream *, unsigned, int"},
		{"cuStreamDestroy_v2", "CUstream"},
		{"cuStreamQuery", "CUstream"},
		{"cuStreamWaitEvent", "CUstream, CUevent, unsigned"},
		{"cuStreamIsCapturing", "CUstream, CUstreamCaptureStatus *"},
		{"cuStreamGetCtx", "CUstream, CUcontext *"},
		{"cuFuncGetAttribute", "int *, CUfunction_attribute, CUfunction"},
		{"cuStreamBeginCapture_v2", "CUstream, CUstreamCaptureMode"},
		{"cuStreamEndCapture", "CUstream, CUgraph *"},
		{"cuGraphDestroy", "CUgraph"},
		{"cuEventCreate", "CUevent *, unsigned"},
		{"cuEventDestroy_v2", "CUevent"},
		{"cuEventRecord", "CUevent, CUstream"},
		{"cuEventQuery", "CUevent"},
		{"cuMemcpyAsync", "CUdeviceptr, CUdeviceptr, size_t, CUstream"},
		{"cuMemsetD8Async", "CUdeviceptr, unsigned char, size_t, CUstream"},
		{"cuModuleLoadData", "CUmodule *, const void *"},
		{"cuModuleUnload", "CUmodule"},
		{"cuModuleGetFunction", "CUfunction *, CUmodule, const char *"},
		{"cuLaunchKernel", "CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **"},
		{"cuGetProcAddress_v2", "const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *"},
		{"cuStreamWaitValue64_v2", "CUstream, CUdeviceptr, cuuint64_t, unsigned"},
		{"cuMemGetHandleForAddressRange", "void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long"},
		{"cuFlushGPUDirectRDMAWrites", "CUflushGPUDirectRDMAWritesTarget, CUflushGPUDirectRDMAWritesScope"},
	} {
		fmt.Fprintf(&c, "CUresult (*f%d)(%s) = %s;\n", i, f.params, f.name)
	}
	c.WriteString("#if CUDA_VERSION >= 12040\nCUresult (*load)(CUfunction) = cuFuncLoad;\n#endif\n")
	// The signature of 12.8 is what cuGetProcAddress is asked for; newer headers declare a later one under the name.
	c.WriteString("#if CUDA_VERSION >= 12080 && CUDA_VERSION < 13000\n" +
		"CUresult (*batch)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *, size_t *, size_t, size_t *, CUstream)" +
		" = cuMemcpyBatchAsync;\n#endif\n")
	compile(t, c.String())
}
