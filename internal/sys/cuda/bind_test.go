package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ebitengine/purego"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/dl"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestLoadWithoutDriver(t *testing.T) {
	_, err := load("libkvlane-none.so.1")
	if !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), "No such file") {
		t.Errorf("error %v: want ErrNotSupported with the loader's reason", err)
	}
}

// The C library can be loaded, but is not a driver.
func TestLoadNamesEveryMissingSymbol(t *testing.T) {
	_, err := load("libc.so.6")
	if !errors.Is(err, errdefs.ErrNotSupported) {
		t.Fatalf("error %v is not ErrNotSupported", err)
	}
	for _, want := range []string{"CUDA 12.0", "cuInit", "cuMemAlloc_v2", "cuMemCreate", "cuLaunchKernel", "cuGetProcAddress_v2"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %s: %v", want, err)
		}
	}
}

// recorder is a libcuda in C. Each function records its name and arguments, writes
// 0x1122334455667788 to the argument selected by out, and returns answer.
const recorder = `
#include <stdint.h>
#include <stdio.h>
#include <string.h>
typedef uint64_t u;
char last[512]; int64_t out = -1; u answer = 0;
static u note(const char *name, u *a, int n) {
	int at = snprintf(last, sizeof last, "%s", name);
	for (int i = 0; i < n; i++) {
		if (i == out) { *(u *)a[i] = 0x1122334455667788; at += snprintf(last + at, sizeof last - at, " out"); }
		else at += snprintf(last + at, sizeof last - at, " %lx", (unsigned long)a[i]);
	}
	return answer;
}
char *recorder_last(void) { return last; }
void recorder_set(int64_t o, u a) { out = o; answer = a; }
#define FN(name) u name(u a, u b, u c, u d, u e, u f, u g, u h, u i, u j, u k) { \
	u args[] = {a, b, c, d, e, f, g, h, i, j, k}; return note(#name, args, 11); }
int cuGetProcAddress_v2(const char *name, void **fn, int version, u flags, int *status);
`

// recorderLibrary compiles the recorder with all functions that this package looks up. Their names
// come from the errors of a library that has none of them.
func recorderLibrary(t *testing.T) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		testkit.Skip(t, "cc", err.Error())
	}
	_, err = load("libc.so.6")
	var c strings.Builder
	c.WriteString(recorder)
	for _, m := range regexp.MustCompile(`look up (\w+) in`).FindAllStringSubmatch(err.Error(), -1) {
		if m[1] != "cuGetProcAddress_v2" && m[1] != "cuIpcOpenMemHandle_v2" {
			fmt.Fprintf(&c, "FN(%s)\n", m[1])
		}
	}
	c.WriteString(`
typedef struct { char reserved[64]; } ipc;
u cuIpcOpenMemHandle_v2(u *p, ipc h, unsigned flags) {
	u args[3] = {(u)p, 0, flags};
	for (int i = 0; i < 64; i++) args[1] = args[1] * 31 + (unsigned char)h.reserved[i];
	return note("cuIpcOpenMemHandle_v2", args, 3);
}
FN(batch_12080) FN(wait_12000) FN(write_12000) FN(load_12040) FN(export_12000) FN(flush_12000)
int cuGetProcAddress_v2(const char *name, void **fn, int version, u flags, int *status) {
	*status = 0;
	*fn = flags != 0 ? 0 : !strcmp(name, "cuMemcpyBatchAsync") && version == 12080 ? (void *)batch_12080
		: !strcmp(name, "cuStreamWaitValue64") && version == 12000 ? (void *)wait_12000
		: !strcmp(name, "cuStreamWriteValue64") && version == 12000 ? (void *)write_12000
		: !strcmp(name, "cuFuncLoad") && version == 12040 ? (void *)load_12040
		: !strcmp(name, "cuMemGetHandleForAddressRange") && version == 12000 ? (void *)export_12000
		: !strcmp(name, "cuFlushGPUDirectRDMAWrites") && version == 12000 ? (void *)flush_12000 : 0;
	return *fn ? 0 : 500;
}
`)
	dir := t.TempDir()
	src, lib := filepath.Join(dir, "recorder.c"), filepath.Join(dir, "librecorder.so")
	if err := os.WriteFile(src, []byte(c.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), cc, "-w", "-shared", "-fPIC", "-O1", "-o", lib, src).CombinedOutput(); err != nil {
		testkit.Skip(t, "cc", fmt.Sprintf("%v: %s", err, out))
	}
	return lib
}

// The expected name and arguments of each driver call, in order. "out" is the pointer for the
// result, "*" another pointer.
func TestCallsReachTheDriver(t *testing.T) {
	name := recorderLibrary(t)
	a, err := load(name)
	if err != nil {
		t.Fatal(err)
	}
	lib, err := dl.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lib.Close(); err != nil {
			t.Error(err)
		}
	})
	var last func() string
	var set func(out int64, answer uint64)
	for _, f := range []struct {
		name string
		to   any
	}{{"recorder_last", &last}, {"recorder_set", &set}} {
		p, err := lib.Symbol(f.name)
		if err != nil {
			t.Fatal(err)
		}
		purego.RegisterFunc(f.to, p)
	}

	const answered = 0x1122334455667788
	value := func(v uint64, r Result) Result {
		if v != answered && v != answered&0xffffffff {
			t.Errorf("the returned value is %#x", v)
		}
		return r
	}
	var handle [HandleBytes]byte
	var folded uint64 // as the recorder folds it
	for i := range handle {
		handle[i] = byte(7*i + 3)
		folded = folded*31 + uint64(handle[i])
	}
	p := &KernelParams{Args: [MaxKernelParams]uint64{1, 2}}
	for _, c := range []struct {
		want string
		out  int64
		call func() Result
	}{
		{"cuInit 1", -1, func() Result { return a.Init(1) }},
		{"cuDriverGetVersion out", 0, func() Result { v, r := a.DriverGetVersion(); return value(uint64(v), r) }},
		{"cuDeviceGetCount out", 0, func() Result { v, r := a.DeviceGetCount(); return value(uint64(v), r) }},
		{"cuDeviceGet out 3", 0, func() Result { v, r := a.DeviceGet(3); return value(uint64(v), r) }},
		{"cuDeviceGetName * 100 3", -1, func() Result { _, r := a.DeviceGetName(3); return r }},
		{"cuDeviceGetPCIBusId * 100 3", -1, func() Result { _, r := a.DeviceGetPCIBusID(3); return r }},
		{"cuDeviceGetUuid_v2 out 3", 0, func() Result {
			v, r := a.DeviceGetUUID(3)
			if v[0] != 0x88 || v[7] != 0x11 {
				t.Errorf("uuid is %x", v)
			}
			return r
		}},
		{"cuDeviceTotalMem_v2 out 3", 0, func() Result { v, r := a.DeviceTotalMem(3); return value(v, r) }},
		{"cuDeviceGetAttribute out 4b 3", 0, func() Result { v, r := a.DeviceGetAttribute(AttrComputeMajor, 3); return value(uint64(v), r) }},
		{"cuDevicePrimaryCtxRetain out 3", 0, func() Result { v, r := a.DevicePrimaryCtxRetain(3); return value(uint64(v), r) }},
		{"cuDevicePrimaryCtxRelease_v2 3", -1, func() Result { return a.DevicePrimaryCtxRelease(3) }},
		{"cuCtxPushCurrent_v2 77", -1, func() Result { return a.CtxPushCurrent(0x77) }},
		{"cuCtxPopCurrent_v2 out", 0, func() Result { v, r := a.CtxPopCurrent(); return value(uint64(v), r) }},
		{"cuCtxGetCurrent out", 0, func() Result { v, r := a.CtxGetCurrent(); return value(uint64(v), r) }},
		{"cuCtxGetStreamPriorityRange * out", 1, func() Result { _, g, r := a.CtxGetStreamPriorityRange(); return value(uint64(g), r) }},
		{"cuThreadExchangeStreamCaptureMode out", 0, func() Result {
			v, r := a.ThreadExchangeStreamCaptureMode(CaptureRelaxed)
			return value(uint64(v), r)
		}},
		{"cuDeviceCanAccessPeer out 3 4", 0, func() Result {
			can, r := a.DeviceCanAccessPeer(3, 4)
			if !can {
				t.Error("the answer is lost")
			}
			return r
		}},
		{"cuCtxEnablePeerAccess 77 0", -1, func() Result { return a.CtxEnablePeerAccess(0x77) }},
		{"cuMemAlloc_v2 out 1000", 0, func() Result { v, r := a.MemAlloc(0x1000); return value(uint64(v), r) }},
		{"cuMemFree_v2 5", -1, func() Result { return a.MemFree(5) }},
		{"cuMemHostRegister_v2 5 6 3", -1, func() Result { return a.MemHostRegister(5, 6, HostRegisterPortable|HostRegisterMapped) }},
		{"cuMemHostUnregister 5", -1, func() Result { return a.MemHostUnregister(5) }},
		{"cuMemHostGetDevicePointer_v2 out 5 0", 0, func() Result { v, r := a.MemHostGetDevicePointer(5); return value(uint64(v), r) }},
		{"cuMemGetAllocationGranularity out * 0", 0, func() Result {
			v, r := a.MemGetGranularity(MemProp{Device: 3, RDMA: true, Handle: MemHandlePosixFD})
			return value(v, r)
		}},
		{"cuMemCreate out 6 * 0", 0, func() Result {
			v, r := a.MemCreate(6, MemProp{Device: 3, Handle: MemHandleFabric})
			return value(uint64(v), r)
		}},
		{"cuMemRelease 5", -1, func() Result { return a.MemRelease(5) }},
		{"cuMemAddressReserve out 6 0 0 0", 0, func() Result { v, r := a.MemAddressReserve(6); return value(uint64(v), r) }},
		{"cuMemAddressFree 5 6", -1, func() Result { return a.MemAddressFree(5, 6) }},
		{"cuMemMap 5 6 0 7 0", -1, func() Result { return a.MemMap(5, 6, 7) }},
		{"cuMemUnmap 5 6", -1, func() Result { return a.MemUnmap(5, 6) }},
		{"cuMemSetAccess 5 6 * 1", -1, func() Result { return a.MemSetAccess(5, 6, 3) }},
		{"cuMemGetAddressRange_v2 * out 5", 1, func() Result { _, n, r := a.MemGetAddressRange(5); return value(n, r) }},
		{"cuMemRetainAllocationHandle out 5", 0, func() Result { v, r := a.MemRetainHandle(5); return value(uint64(v), r) }},
		{"cuMemExportToShareableHandle out 5 1 0", 0, func() Result { fd, r := a.MemExportFD(5); return value(uint64(uint32(fd)), r) }},
		{"cuMemExportToShareableHandle out 5 8 0", 0, func() Result {
			data, r := a.MemExportFabric(5)
			return value(binary.NativeEndian.Uint64(data[:]), r)
		}},
		{"cuMemImportFromShareableHandle out 7 1", 0, func() Result { v, r := a.MemImportFD(7); return value(uint64(v), r) }},
		{"cuMemImportFromShareableHandle out * 8", 0, func() Result { v, r := a.MemImportFabric(&handle); return value(uint64(v), r) }},
		{"cuIpcGetMemHandle out 5", 0, func() Result { data, r := a.IPCGetMemHandle(5); return value(binary.NativeEndian.Uint64(data[:]), r) }},
		{fmt.Sprintf("cuIpcOpenMemHandle_v2 out %x 1", folded), 0, func() Result { v, r := a.IPCOpenMemHandle(&handle); return value(uint64(v), r) }},
		{"cuIpcCloseMemHandle 5", -1, func() Result { return a.IPCCloseMemHandle(5) }},
		{"cuStreamCreateWithPriority out 1 5", 0, func() Result { v, r := a.StreamCreateWithPriority(1, 5); return value(uint64(v), r) }},
		{"cuStreamDestroy_v2 5", -1, func() Result { return a.StreamDestroy(5) }},
		{"cuStreamQuery 5", -1, func() Result { return a.StreamQuery(5) }},
		{"cuStreamWaitEvent 5 6 0", -1, func() Result { return a.StreamWaitEvent(5, 6) }},
		{"cuStreamIsCapturing 5 out", 1, func() Result { v, r := a.StreamIsCapturing(5); return value(uint64(v), r) }},
		{"cuStreamGetCtx 5 out", 1, func() Result { v, r := a.StreamGetCtx(5); return value(uint64(v), r) }},
		{"cuFuncGetAttribute out 0 5", 0, func() Result { v, r := a.FuncGetAttribute(FuncMaxThreads, 5); return value(uint64(v), r) }},
		{"load_12040 5", -1, func() Result { return a.FuncLoad(5) }},
		{"cuStreamBeginCapture_v2 5 2", -1, func() Result { return a.StreamBeginCapture(5, CaptureRelaxed) }},
		{"cuStreamEndCapture 5 out", 1, func() Result { v, r := a.StreamEndCapture(5); return value(uint64(v), r) }},
		{"cuGraphDestroy 5", -1, func() Result { return a.GraphDestroy(5) }},
		{"cuEventCreate out 2", 0, func() Result { v, r := a.EventCreate(EventDisableTiming); return value(uint64(v), r) }},
		{"cuEventDestroy_v2 5", -1, func() Result { return a.EventDestroy(5) }},
		{"cuEventRecord 6 5", -1, func() Result { return a.EventRecord(6, 5) }},
		{"cuEventQuery 6", -1, func() Result { return a.EventQuery(6) }},
		{"cuMemcpyAsync 5 6 7 8", -1, func() Result { return a.MemcpyAsync(5, 6, 7, 8) }},
		{"cuMemcpy2DAsync_v2 * 8", -1, func() Result { return a.Memcpy2DAsync(&Memcpy2D{Height: 1}, 8) }},
		{"cuMemsetD8Async 5 6 7 8", -1, func() Result { return a.MemsetD8Async(5, 6, 7, 8) }},
		{"cuModuleLoadData out *", 0, func() Result { v, r := a.ModuleLoadData([]byte("ptx")); return value(uint64(v), r) }},
		{"cuModuleUnload 5", -1, func() Result { return a.ModuleUnload(5) }},
		{"cuModuleGetFunction out 5 *", 0, func() Result { v, r := a.ModuleGetFunction(5, "f"); return value(uint64(v), r) }},
		{"cuLaunchKernel 5 10 1 1 200 1 1 0 8 * 0", -1, func() Result { return a.LaunchKernel(5, 16, 512, 8, p) }},
		{"batch_12080 * * * 2 * * 1 * 8", -1, func() Result {
			return a.MemcpyBatchAsync([]DevicePtr{1, 2}, []DevicePtr{3, 4}, []uint64{5, 6}, 8)
		}},
		{"wait_12000 5 6 7 0", -1, func() Result { return a.StreamWaitValue64(5, 6, 7, StreamWaitValueGEQ) }},
		{"write_12000 5 6 7 0", -1, func() Result { return a.StreamWriteValue64(5, 6, 7, StreamWriteValue) }},
		{"export_12000 out 5 6 1 0", 0, func() Result { fd, r := a.MemExportDMABuf(5, 6); return value(uint64(uint32(fd)), r) }},
		{"flush_12000 0 c8", -1, func() Result { return a.FlushGPUDirectRDMAWrites(RDMAScopeAllDevices) }},
	} {
		set(c.out, 0xffff_0000_0000_02bc) // an int of 700 in a register whose upper half is undefined
		if r := c.call(); r != ErrorIllegalAddress {
			t.Errorf("%s: answered %v, want 700", c.want, r)
		}
		got, want := strings.Fields(last()), strings.Fields(c.want)
		for i, w := range want {
			if got[i] != w && (w != "*" || len(got[i]) < 8) {
				t.Errorf("call %q, want %q", strings.Join(got[:len(want)], " "), c.want)
				break
			}
		}
	}
	if name := a.ErrorName(5); name != "" {
		t.Errorf("the driver has no name for it, and it is %q", name)
	}
}

func TestCallsAllocateNothing(t *testing.T) {
	lib, err := dl.Open("libc.so.6")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lib.Close(); err != nil {
			t.Error(err)
		}
	})
	fn, err := lib.Symbol("abs")
	if err != nil {
		t.Fatal(err)
	}
	c := newCaller()
	if r := c.do(fn, 7); r != 7 {
		t.Fatalf("abs(7) is %d", r)
	}
	if n := testing.AllocsPerRun(1000, func() { c.do(fn, 7, 8, 9, 10) }); n != 0 {
		t.Errorf("a call allocates %v times", n)
	}
}

func BenchmarkCall(b *testing.B) {
	lib, err := dl.Open("libc.so.6")
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := lib.Close(); err != nil {
			b.Error(err)
		}
	}()
	fn, err := lib.Symbol("abs")
	if err != nil {
		b.Fatal(err)
	}
	c := newCaller()
	b.ReportAllocs()
	for b.Loop() {
		c.do(fn, 7, 8, 9, 10)
	}
}

func TestResultsHaveSentinels(t *testing.T) {
	for r, want := range map[Result]error{
		ErrorInvalidValue:          errdefs.ErrInvalid,
		ErrorInvalidDevice:         errdefs.ErrInvalid,
		ErrorHostNotRegistered:     errdefs.ErrInvalid,
		ErrorOutOfMemory:           errdefs.ErrNoMemory,
		ErrorHostAlreadyRegistered: errdefs.ErrExists,
		ErrorNotFound:              errdefs.ErrNotFound,
		ErrorNoDevice:              errdefs.ErrNotSupported,
		ErrorNotPermitted:          errdefs.ErrNotSupported,
		ErrorNotSupported:          errdefs.ErrNotSupported,
		ErrorUnsupportedPTXVersion: errdefs.ErrNotSupported,
		ErrorSystemDriverMismatch:  errdefs.ErrNotSupported,
		ErrorStreamCaptureImplicit: errdefs.ErrNotSupported,
		ErrorDeviceUnavailable:     errdefs.ErrBusy,
		ErrorIllegalAddress:        errdefs.ErrBroken,
		ErrorLaunchFailed:          errdefs.ErrBroken,
		ErrorECCUncorrectable:      errdefs.ErrBroken,
		ErrorDeinitialized:         errdefs.ErrClosed,
		Result(12345):              nil,
	} {
		if got := r.Sentinel(); got != want { //nolint:errorlint // identity is what is tested
			t.Errorf("%v is %v, want %v", r, got, want)
		}
	}
	for r, want := range map[Result]bool{
		ErrorIllegalAddress: true, ErrorLaunchFailed: true, ErrorUnknown: true, ErrorDeinitialized: true,
		Success: false, ErrorNotReady: false, ErrorOutOfMemory: false, ErrorInvalidValue: false,
	} {
		if r.Sticky() != want {
			t.Errorf("%v: sticky is %v", r, !want)
		}
	}
}
