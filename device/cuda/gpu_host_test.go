package cuda_test

import (
	"errors"
	"runtime"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	syscuda "github.com/kvlane/kvlane/internal/sys/cuda"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
)

// hostProgram is a program that shares the GPU's primary context with kvlane.
type hostProgram struct {
	api *syscuda.API
	ctx syscuda.Context
}

func newHostProgram(tb testing.TB, index int) *hostProgram {
	tb.Helper()
	api, err := syscuda.Load()
	if err != nil {
		tb.Fatal(err)
	}
	id, r := api.DeviceGet(index)
	result(tb, r)
	ctx, r := api.DevicePrimaryCtxRetain(id)
	result(tb, r)
	tb.Cleanup(func() { result(tb, api.DevicePrimaryCtxRelease(id)) })
	return &hostProgram{api: api, ctx: ctx}
}

func result(tb testing.TB, r syscuda.Result) {
	tb.Helper()
	if r != syscuda.Success {
		tb.Fatalf("driver answered %v", r)
	}
}

// with runs f with the context current.
func (h *hostProgram) with(tb testing.TB, f func()) {
	tb.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	result(tb, h.api.CtxPushCurrent(h.ctx))
	f()
	_, r := h.api.CtxPopCurrent()
	result(tb, r)
}

func (h *hostProgram) stream(tb testing.TB) syscuda.Stream {
	tb.Helper()
	var st syscuda.Stream
	h.with(tb, func() {
		var r syscuda.Result
		st, r = h.api.StreamCreateWithPriority(syscuda.StreamNonBlocking, 0)
		result(tb, r)
	})
	tb.Cleanup(func() { h.with(tb, func() { result(tb, h.api.StreamDestroy(st)) }) })
	return st
}

func (f *fixture) adopter() device.StreamAdopter {
	f.Helper()
	a, ok := f.dev.(device.StreamAdopter)
	if !ok {
		f.Fatalf("%T adopts no streams", f.dev)
	}
	return a
}

func (f *fixture) adopt(stream uintptr) device.HostStream {
	f.Helper()
	st, err := f.adopter().AdoptStream(stream)
	f.must(err)
	return st
}

// kvlane's threads neither join nor break a capture of the host program.
func TestGPUCaptureOfTheHostProgram(t *testing.T) {
	// A capture ends on the thread where it began.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	f := newFixture(t)
	h := newHostProgram(t, 0)
	st := h.stream(t)
	host := f.adopt(uintptr(st))
	f.adopt(0) // the default stream
	word := mem.Extent{Region: f.pinned(4096), Len: 8}
	h.with(t, func() {
		result(t, h.api.StreamBeginCapture(st, syscuda.CaptureGlobal))
	})
	if _, err := f.adopter().AdoptStream(uintptr(st)); !notSupported(err) {
		t.Errorf("adopt a capturing stream: %v, want ErrNotSupported", err)
	}
	if _, err := host.Record(); !notSupported(err) {
		t.Errorf("record on a capturing stream: %v, want ErrNotSupported", err)
	}
	if err := host.WaitValue(word, 1); !notSupported(err) {
		t.Errorf("wait on a capturing stream: %v, want ErrNotSupported", err)
	}
	// In the default mode CUDA forbids these calls on any thread during a capture.
	other := f.queue()
	r, err := f.dev.Alloc(1<<20, device.AllocOptions{})
	f.must(err)
	pinned, err := f.dev.AllocHost(1 << 20)
	f.must(err)
	f.must(other.Copy(mem.All(r), mem.All(pinned)))
	e, err := other.Record()
	f.must(err)
	f.must(e.Wait(t.Context()))
	e.Close()
	f.must(other.Close(t.Context()))
	f.must(f.dev.Free(pinned))
	f.must(f.dev.Free(r))
	h.with(t, func() {
		g, r := h.api.StreamEndCapture(st)
		result(t, r) // an error if a call above has broken the capture
		result(t, h.api.GraphDestroy(g))
	})
}

// kvlane leaves no context on any thread.
func TestGPULeavesNoContextBehind(t *testing.T) {
	f := newFixture(t)
	h := newHostProgram(t, 0)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	f.must(f.q.Fill(mem.All(f.device(1<<20)), 1))
	f.sync()
	ctx, r := h.api.CtxGetCurrent()
	result(t, r)
	if ctx != 0 {
		t.Errorf("context %#x is current", ctx)
	}
}

// A stream of another GPU's context is refused.
func TestGPURefusesStreamsOfAnotherContext(t *testing.T) {
	_, n := driver(t)
	if n < 2 {
		testkit.Skip(t, "two-gpus", "this machine has one GPU")
	}
	f := newFixture(t)
	other := newHostProgram(t, 1).stream(t)
	if _, err := f.adopter().AdoptStream(uintptr(other)); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("adopt: %v, want ErrInvalid", err)
	}
}
