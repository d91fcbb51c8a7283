package cuda

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/sys/cuda"
)

const (
	fakeContext   cuda.Context = 0xc0de
	fakeGrain                  = 2 << 20
	fakeFD                     = 1 << 20 // not an open descriptor
	fakeUUID                   = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"
	strangeStream cuda.Stream  = 0xbad // a stream of another context
	fakeName                   = "Fake GPU"
)

// fake is a driver in Go. It records live objects and the current context of each OS thread, and
// fails the calls that a test selects.
type fake struct {
	tb testing.TB

	mu        sync.Mutex
	stacks    map[int][]cuda.Context     // stack of contexts of each thread
	relaxed   map[int]bool               // threads in relaxed capture mode
	alive     map[string]map[uint64]bool // open objects of each kind
	next      uint64
	calls     []string
	failAt    int // index, counted from now, of the call that fails; -1 for none
	failAll   bool
	failBy    cuda.Result
	failed    string             // the call that failed last
	state     cuda.Result        // result of StreamQuery and EventQuery
	capture   cuda.CaptureStatus // result of StreamIsCapturing
	compute   int
	memops    int
	waitFlags uint32                 // flags of the last cuStreamWaitValue64
	rdma      map[cuda.Attribute]int // attributes of RDMA
	hosts     map[uint64]uint64      // lengths of registered host memory, by address
	maxHost   uint64                 // limit of a registration in bytes; zero: none
	gap       uint64                 // added to the device address of each further registration
}

func newFake(tb testing.TB) *fake {
	tb.Helper()
	return &fake{
		tb: tb, stacks: make(map[int][]cuda.Context), relaxed: make(map[int]bool), alive: make(map[string]map[uint64]bool),
		next: 0x1000, hosts: make(map[uint64]uint64), failAt: -1, failBy: cuda.ErrorOutOfMemory, compute: 9, memops: 1,
	}
}

// Requirements of a call on its thread.
const (
	nothing = iota
	withContext
	contextRelaxed
	relaxedOnly
)

// enter records a call, checks its thread and returns its result.
func (f *fake) enter(name string, needs int) cuda.Result {
	f.mu.Lock()
	defer f.mu.Unlock()
	tid := unix.Gettid()
	if needs == withContext || needs == contextRelaxed {
		if s := f.stacks[tid]; len(s) == 0 || s[len(s)-1] != fakeContext {
			f.tb.Errorf("%s runs without its context on thread %d: %#x", name, tid, s)
		}
	}
	if (needs == contextRelaxed || needs == relaxedOnly) && !f.relaxed[tid] {
		f.tb.Errorf("%s runs in a capture mode that can break the host program's captures", name)
	}
	f.calls = append(f.calls, name)
	if f.failAt == 0 || f.failAll {
		f.failAt = -1
		f.failed = name
		return f.failBy
	}
	if f.failAt > 0 {
		f.failAt--
	}
	return cuda.Success
}

func (f *fake) made(kind string, r cuda.Result) (uint64, cuda.Result) {
	if r != cuda.Success {
		return 0, r
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next += fakeGrain
	f.add(kind, f.next)
	return f.next, r
}

func (f *fake) add(kind string, id uint64) {
	if f.alive[kind] == nil {
		f.alive[kind] = make(map[uint64]bool)
	}
	if f.alive[kind][id] {
		f.tb.Errorf("%s %#x is made twice", kind, id)
	}
	f.alive[kind][id] = true
}

func (f *fake) gone(kind string, id uint64, r cuda.Result) cuda.Result {
	if r != cuda.Success {
		return r
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.alive[kind][id] {
		f.tb.Errorf("%s %#x is destroyed but not alive", kind, id)
	}
	delete(f.alive[kind], id)
	return r
}

// left returns the number of live objects by kind, or nil.
func (f *fake) left() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	var n map[string]int
	for kind, ids := range f.alive {
		if len(ids) > 0 {
			if n == nil {
				n = make(map[string]int)
			}
			n[kind] = len(ids)
		}
	}
	return n
}

func (f *fake) push(ctx cuda.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	tid := unix.Gettid()
	f.stacks[tid] = append(f.stacks[tid], ctx)
}

func (f *fake) pop() cuda.Context {
	f.mu.Lock()
	defer f.mu.Unlock()
	tid := unix.Gettid()
	s := f.stacks[tid]
	if len(s) == 0 {
		f.tb.Errorf("context popped from the empty stack of thread %d", tid)
		return 0
	}
	f.stacks[tid] = s[:len(s)-1]
	return s[len(s)-1]
}

// clean fails the test if a thread keeps a context, or the relaxed mode.
func (f *fake) clean() {
	f.tb.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for tid, s := range f.stacks {
		if len(s) > 0 {
			f.tb.Errorf("thread %d is left with contexts %#x", tid, s)
		}
	}
	for tid, on := range f.relaxed {
		if on {
			f.tb.Errorf("thread %d is left in relaxed mode", tid)
		}
	}
}

func (f *fake) failNth(n int, by cuda.Result) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failAt, f.failBy, f.failed = n, by, ""
}

func (f *fake) failedCall() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) count(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, c := range f.calls {
		if c == name {
			n++
		}
	}
	return n
}

func (f *fake) api() *cuda.API {
	a := &cuda.API{
		ErrorName: func(r cuda.Result) string { return fmt.Sprintf("CUDA_ERROR_FAKE_%d", r) },
		ErrorText: func(cuda.Result) string { return "fake failure" },

		Init:             func(uint32) cuda.Result { return f.enter("cuInit", nothing) },
		DriverGetVersion: func() (int, cuda.Result) { return 12080, f.enter("cuDriverGetVersion", nothing) },
		DeviceGetCount:   func() (int, cuda.Result) { return 2, f.enter("cuDeviceGetCount", nothing) },
		DeviceGet:        func(i int) (cuda.DeviceID, cuda.Result) { return cuda.DeviceID(i), f.enter("cuDeviceGet", nothing) },
		DeviceGetName:    func(cuda.DeviceID) (string, cuda.Result) { return fakeName, f.enter("cuDeviceGetName", nothing) },
		DeviceGetPCIBusID: func(cuda.DeviceID) (string, cuda.Result) {
			return "0000:AB:00.0", f.enter("cuDeviceGetPCIBusId", nothing)
		},
		DeviceTotalMem: func(cuda.DeviceID) (uint64, cuda.Result) { return 1 << 36, f.enter("cuDeviceTotalMem_v2", nothing) },
		DeviceGetUUID: func(cuda.DeviceID) ([16]byte, cuda.Result) {
			return [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, f.enter("cuDeviceGetUuid_v2", nothing)
		},
		DeviceGetAttribute: f.attribute,

		DevicePrimaryCtxRetain: func(cuda.DeviceID) (cuda.Context, cuda.Result) {
			_, r := f.made("context", f.enter("cuDevicePrimaryCtxRetain", nothing))
			return fakeContext, r
		},
		DevicePrimaryCtxRelease: func(cuda.DeviceID) cuda.Result {
			r := f.enter("cuDevicePrimaryCtxRelease_v2", nothing)
			f.set(func() { clear(f.alive["context"]) })
			return r
		},
		CtxPushCurrent: func(ctx cuda.Context) cuda.Result {
			r := f.enter("cuCtxPushCurrent_v2", nothing)
			if r == cuda.Success {
				f.push(ctx)
			}
			return r
		},
		// Popping the context and restoring the mode are not counted as calls that a test can fail.
		// They succeed while the context lives, and a device on which they fail is broken.
		CtxPopCurrent:                   func() (cuda.Context, cuda.Result) { return f.pop(), cuda.Success },
		ThreadExchangeStreamCaptureMode: f.exchange,
		CtxGetStreamPriorityRange: func() (int, int, cuda.Result) {
			return 0, -5, f.enter("cuCtxGetStreamPriorityRange", withContext)
		},
	}
	f.memory(a)
	f.sharing(a)
	f.streams(a)
	f.work(a)
	return a
}

func (f *fake) attribute(attr cuda.Attribute, _ cuda.DeviceID) (int, cuda.Result) {
	r := f.enter("cuDeviceGetAttribute", nothing)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch attr {
	case cuda.AttrComputeMajor:
		return f.compute, r
	case cuda.AttrComputeMinor:
		return 0, r
	case cuda.AttrStreamMemOps64:
		return f.memops, r
	case cuda.AttrAsyncEngineCount:
		return 3, r
	case cuda.AttrMultiprocessorCount:
		return 132, r
	case cuda.AttrFlushRemoteWrites, cuda.AttrRDMAVirtualMemory, cuda.AttrRDMAFlushOptions, cuda.AttrRDMAOrdering, cuda.AttrDMABuf:
		return f.rdma[attr], r
	default:
		f.tb.Errorf("attribute %d is asked for", attr)
		return 0, r
	}
}

func (f *fake) exchange(mode cuda.CaptureMode) (cuda.CaptureMode, cuda.Result) {
	if mode == cuda.CaptureRelaxed {
		if r := f.enter("cuThreadExchangeStreamCaptureMode", nothing); r != cuda.Success {
			return 0, r
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	tid := unix.Gettid()
	before := cuda.CaptureGlobal
	if f.relaxed[tid] {
		before = cuda.CaptureRelaxed
	}
	f.relaxed[tid] = mode == cuda.CaptureRelaxed
	return before, cuda.Success
}

func (f *fake) memory(a *cuda.API) {
	a.MemAlloc = func(uint64) (cuda.DevicePtr, cuda.Result) {
		p, r := f.made("memory", f.enter("cuMemAlloc_v2", contextRelaxed))
		return cuda.DevicePtr(p), r
	}
	a.MemFree = func(p cuda.DevicePtr) cuda.Result {
		return f.gone("memory", uint64(p), f.enter("cuMemFree_v2", contextRelaxed))
	}
	f.hostMemory(a)
	a.MemGetGranularity = func(cuda.MemProp) (uint64, cuda.Result) {
		return fakeGrain, f.enter("cuMemGetAllocationGranularity", nothing)
	}
	whole := func(name string, bytes uint64) {
		if bytes == 0 || bytes%fakeGrain != 0 {
			f.tb.Errorf("%s of %d bytes, which are no multiple of the granularity", name, bytes)
		}
	}
	a.MemCreate = func(bytes uint64, _ cuda.MemProp) (cuda.MemHandle, cuda.Result) {
		whole("cuMemCreate", bytes)
		h, r := f.made("handle", f.enter("cuMemCreate", contextRelaxed))
		return cuda.MemHandle(h), r
	}
	a.MemRelease = func(h cuda.MemHandle) cuda.Result {
		return f.gone("handle", uint64(h), f.enter("cuMemRelease", contextRelaxed))
	}
	a.MemAddressReserve = func(bytes uint64) (cuda.DevicePtr, cuda.Result) {
		whole("cuMemAddressReserve", bytes)
		p, r := f.made("reservation", f.enter("cuMemAddressReserve", contextRelaxed))
		return cuda.DevicePtr(p), r
	}
	a.MemAddressFree = func(p cuda.DevicePtr, bytes uint64) cuda.Result {
		whole("cuMemAddressFree", bytes)
		f.mu.Lock()
		mapped := f.alive["mapping"][uint64(p)]
		f.mu.Unlock()
		if mapped {
			f.tb.Errorf("reservation %#x is freed while memory is mapped there", p)
		}
		return f.gone("reservation", uint64(p), f.enter("cuMemAddressFree", contextRelaxed))
	}
	a.MemMap = func(p cuda.DevicePtr, bytes uint64, _ cuda.MemHandle) cuda.Result {
		whole("cuMemMap", bytes)
		r := f.enter("cuMemMap", contextRelaxed)
		if r == cuda.Success {
			f.set(func() { f.add("mapping", uint64(p)) })
		}
		return r
	}
	a.MemUnmap = func(p cuda.DevicePtr, bytes uint64) cuda.Result {
		whole("cuMemUnmap", bytes)
		return f.gone("mapping", uint64(p), f.enter("cuMemUnmap", contextRelaxed))
	}
	a.FlushGPUDirectRDMAWrites = func(to cuda.RDMAScope) cuda.Result {
		if to != cuda.RDMAScopeAllDevices {
			f.tb.Errorf("flushed for %d alone", to)
		}
		return f.enter("cuFlushGPUDirectRDMAWrites", contextRelaxed)
	}
	a.MemSetAccess = func(_ cuda.DevicePtr, bytes uint64, _ cuda.DeviceID) cuda.Result {
		whole("cuMemSetAccess", bytes)
		return f.enter("cuMemSetAccess", contextRelaxed)
	}
}

func (f *fake) streams(a *cuda.API) {
	a.StreamCreateWithPriority = func(uint32, int) (cuda.Stream, cuda.Result) {
		s, r := f.made("stream", f.enter("cuStreamCreateWithPriority", contextRelaxed))
		return cuda.Stream(s), r
	}
	a.StreamDestroy = func(s cuda.Stream) cuda.Result {
		return f.gone("stream", uint64(s), f.enter("cuStreamDestroy_v2", contextRelaxed))
	}
	answer := func(r cuda.Result) cuda.Result {
		f.mu.Lock()
		defer f.mu.Unlock()
		if r == cuda.Success {
			return f.state
		}
		return r
	}
	a.StreamQuery = func(cuda.Stream) cuda.Result { return answer(f.enter("cuStreamQuery", contextRelaxed)) }
	a.EventQuery = func(cuda.Event) cuda.Result { return answer(f.enter("cuEventQuery", relaxedOnly)) }
	a.StreamWaitEvent = func(cuda.Stream, cuda.Event) cuda.Result { return f.enter("cuStreamWaitEvent", withContext) }
	a.StreamIsCapturing = func(cuda.Stream) (cuda.CaptureStatus, cuda.Result) {
		r := f.enter("cuStreamIsCapturing", contextRelaxed)
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.capture, r
	}
	a.StreamGetCtx = func(s cuda.Stream) (cuda.Context, cuda.Result) {
		r := f.enter("cuStreamGetCtx", contextRelaxed)
		if s == strangeStream {
			return fakeContext + 1, r
		}
		return fakeContext, r
	}
	a.EventCreate = func(uint32) (cuda.Event, cuda.Result) {
		e, r := f.made("event", f.enter("cuEventCreate", contextRelaxed))
		return cuda.Event(e), r
	}
	a.EventDestroy = func(e cuda.Event) cuda.Result {
		return f.gone("event", uint64(e), f.enter("cuEventDestroy_v2", contextRelaxed))
	}
	a.EventRecord = func(cuda.Event, cuda.Stream) cuda.Result { return f.enter("cuEventRecord", withContext) }
	a.StreamWaitValue64 = func(_ cuda.Stream, _ cuda.DevicePtr, _ uint64, flags uint32) cuda.Result {
		f.set(func() { f.waitFlags = flags })
		return f.enter("cuStreamWaitValue64_v2", withContext)
	}
	a.StreamWriteValue64 = func(_ cuda.Stream, _ cuda.DevicePtr, _ uint64, _ uint32) cuda.Result {
		return f.enter("cuStreamWriteValue64_v2", withContext)
	}
}

func (f *fake) work(a *cuda.API) {
	a.MemcpyAsync = func(d, s cuda.DevicePtr, n uint64, _ cuda.Stream) cuda.Result {
		f.one(d, n)
		f.one(s, n)
		return f.enter("cuMemcpyAsync", withContext)
	}
	a.MemcpyBatchAsync = func(d, s []cuda.DevicePtr, bytes []uint64, _ cuda.Stream) cuda.Result {
		if len(d) == 0 || len(s) != len(d) || len(bytes) != len(d) || slices.Contains(bytes, 0) {
			f.tb.Errorf("the driver would refuse this batch: %d to %d, sizes %d", len(s), len(d), bytes)
		}
		for i := range d {
			f.one(d[i], bytes[i])
			f.one(s[i], bytes[i])
		}
		return f.enter("cuMemcpyBatchAsync", withContext)
	}
	a.Memcpy2DAsync = func(c *cuda.Memcpy2D, _ cuda.Stream) cuda.Result {
		if c.Height < 2 || c.WidthInBytes == 0 || c.SrcPitch < c.WidthInBytes || c.DstPitch < c.WidthInBytes || c.SrcType != cuda.MemTypeUnified || c.DstType != cuda.MemTypeUnified {
			f.tb.Errorf("the driver would refuse these rows: %+v", *c)
		}
		f.one(c.Dst, c.DstPitch*(c.Height-1)+c.WidthInBytes)
		f.one(c.Src, c.SrcPitch*(c.Height-1)+c.WidthInBytes)
		return f.enter("cuMemcpy2DAsync_v2", withContext)
	}
	a.MemsetD8Async = func(p cuda.DevicePtr, _ byte, n uint64, _ cuda.Stream) cuda.Result {
		f.one(p, n)
		return f.enter("cuMemsetD8Async", withContext)
	}
	a.ModuleLoadData = func([]byte) (cuda.Module, cuda.Result) {
		m, r := f.made("module", f.enter("cuModuleLoadData", contextRelaxed))
		return cuda.Module(m), r
	}
	a.ModuleUnload = func(m cuda.Module) cuda.Result {
		return f.gone("module", uint64(m), f.enter("cuModuleUnload", contextRelaxed))
	}
	a.ModuleGetFunction = func(cuda.Module, string) (cuda.Function, cuda.Result) {
		return 1, f.enter("cuModuleGetFunction", contextRelaxed)
	}
	a.FuncLoad = func(cuda.Function) cuda.Result { return f.enter("cuFuncLoad", contextRelaxed) }
	a.FuncGetAttribute = func(cuda.FunctionAttribute, cuda.Function) (int, cuda.Result) {
		return 1024, f.enter("cuFuncGetAttribute", contextRelaxed)
	}
	a.LaunchKernel = func(cuda.Function, uint32, uint32, cuda.Stream, *cuda.KernelParams) cuda.Result {
		return f.enter("cuLaunchKernel", withContext)
	}
}

// open opens the fake's first device and closes it at the end of the test. The device must leave no
// objects behind.
func (f *fake) open() device.Device {
	f.tb.Helper()
	dev := f.openOnly()
	f.tb.Cleanup(func() {
		f.tb.Helper()
		if err := dev.Close(); err != nil {
			f.tb.Errorf("close device: %v", err)
		}
		if left := f.left(); left != nil {
			f.tb.Errorf("objects left in the driver: %v", left)
		}
		f.clean()
	})
	return dev
}

func (f *fake) openOnly() device.Device {
	f.tb.Helper()
	drv, err := newDriver(f.api())
	if err != nil {
		f.tb.Fatal(err)
	}
	dev, err := drv.Open(0, Options{})
	if err != nil {
		f.tb.Fatal(err)
	}
	return dev
}
