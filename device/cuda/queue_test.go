package cuda

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/internal/sys/cuda"
	"github.com/kvlane/kvlane/mem"
)

// all is the interface of a queue with every optional ability.
type all interface {
	device.BatchCopier
	device.Launcher
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func concrete(tb testing.TB, dev device.Device) *Device {
	tb.Helper()
	d, ok := dev.(*Device)
	if !ok {
		tb.Fatalf("device is a %T", dev)
	}
	return d
}

func able(tb testing.TB, q device.Queue) all {
	tb.Helper()
	a, ok := q.(all)
	if !ok {
		tb.Fatalf("queue is a %T, which lacks something", q)
	}
	return a
}

// fakeQueue is a device with an open queue and two regions, all closed at the end.
func fakeQueue(t *testing.T) (f *fake, dev device.Device, q all, d, h *mem.Region) {
	t.Helper()
	f = newFake(t)
	dev = f.open()
	open, err := dev.OpenQueue(device.QueueOptions{})
	must(t, err)
	q = able(t, open)
	d, err = dev.Alloc(1<<20, device.AllocOptions{})
	must(t, err)
	h, err = dev.AllocHost(1 << 20)
	must(t, err)
	t.Cleanup(func() {
		must(t, q.Close(context.Background()))
		must(t, dev.Free(d))
		must(t, dev.Free(h))
	})
	return f, dev, q, d, h
}

// adopt adopts a stream of the host program.
func adopt(tb testing.TB, dev device.Device) device.HostStream {
	tb.Helper()
	st, err := concrete(tb, dev).AdoptStream(7)
	must(tb, err)
	return st
}

// operations returns one call of each operation of a queue and of a host stream.
func operations(q all, st device.HostStream, d, h *mem.Region) map[string]func() error {
	k := device.Kernel{Name: device.KernelCopyList, NArgs: 2}
	return map[string]func() error{
		"copy":       func() error { return q.Copy(mem.All(d), mem.All(h)) },
		"fill":       func() error { return q.Fill(mem.All(d), 1) },
		"batch":      func() error { return q.CopyBatch([]mem.Extent{mem.All(d)}, []mem.Extent{mem.All(h)}) },
		"launch":     func() error { return q.Launch(&k) },
		"wait value": func() error { return st.WaitValue(mem.Extent{Region: h, Len: 8}, 1) },
		"record": func() error {
			e, err := q.Record()
			if err == nil {
				e.Close()
			}
			return err
		},
		"record on": func() error {
			e, err := st.Record()
			if err == nil {
				e.Close()
			}
			return err
		},
	}
}

func TestQueueReportsTheNthFailingCall(t *testing.T) {
	f, dev, q, d, h := fakeQueue(t)
	for name, op := range operations(q, adopt(t, dev), d, h) {
		for n := 0; ; n++ {
			f.failNth(n, cuda.ErrorOutOfMemory)
			err := op()
			failed := f.failedCall()
			f.failNth(-1, cuda.Success)
			if failed == "" {
				if err != nil || n == 0 {
					t.Errorf("%s: %d calls failed, then: %v", name, n, err)
				}
				break
			}
			var native *device.Error
			if !errors.As(err, &native) || native.Call != failed {
				t.Errorf("%s: %s failed, and the error is %v", name, failed, err)
			}
		}
	}
	if live := leak.Live()[leak.Events.String()]; live != 0 {
		t.Errorf("%d events are live", live)
	}
}

func TestFailedOpenIsUndone(t *testing.T) {
	f := newFake(t)
	drv, err := newDriver(f.api())
	must(t, err)
	for n := 0; ; n++ {
		f.failNth(n, cuda.ErrorOutOfMemory)
		dev, err := drv.Open(0, Options{})
		failed := f.failedCall()
		f.failNth(-1, cuda.Success)
		if failed == "" {
			must(t, err)
			must(t, dev.Close())
			must(t, dev.Close())
			break
		}
		if err == nil || !strings.Contains(err.Error(), failed) {
			t.Errorf("%s failed, and the error is %v", failed, err)
		}
		if left := f.left(); left != nil {
			t.Errorf("%s failed, and there are left: %v", failed, left)
		}
	}
	f.clean()
}

// A goroutine may be on any thread at any call, also on a thread of the host program with its own
// context.
func TestCallsRunInTheirContextOnEveryThread(t *testing.T) {
	f, dev, _, d, h := fakeQueue(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if i%2 == 0 {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				f.push(0xbeef)
				defer func() {
					if ctx := f.pop(); ctx != 0xbeef {
						t.Errorf("the thread's own context became %#x", ctx)
					}
				}()
			}
			q, err := dev.OpenQueue(device.QueueOptions{HighPriority: true})
			if err != nil {
				t.Error(err)
				return
			}
			for range 20 {
				for name, op := range operations(able(t, q), adopt(t, dev), d, h) {
					if err := op(); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					runtime.Gosched()
				}
			}
			if err := q.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestQueueHasWhatTheDriverAndTheGPUHave(t *testing.T) {
	for n := range 8 {
		kernels, batch, waits := n&1 != 0, n&2 != 0, n&4 != 0
		f := newFake(t)
		api := f.api()
		if !kernels {
			f.compute = 6
		}
		if !batch {
			api.MemcpyBatchAsync = nil
		}
		if !waits {
			f.memops = 0
		}
		drv, err := newDriver(api)
		must(t, err)
		dev, err := drv.Open(1, Options{})
		must(t, err)
		q, err := dev.OpenQueue(device.QueueOptions{})
		must(t, err)
		_, isLauncher := q.(device.Launcher)
		_, isBatch := q.(device.BatchCopier)
		h, err := dev.AllocHost(8)
		must(t, err)
		err = adopt(t, dev).WaitValue(mem.All(h), 1)
		if isLauncher != kernels || isBatch != batch || (err == nil) != waits || !waits && !errors.Is(err, errdefs.ErrNotSupported) {
			t.Errorf("launcher %v batch %v waiting %v, want %v %v %v", isLauncher, isBatch, err, kernels, batch, waits)
		}
		lacks := concrete(t, dev).Lacks()
		missing := 0
		for _, has := range []bool{kernels, batch, waits} {
			if !has {
				missing++
			}
		}
		if len(lacks) != missing {
			t.Errorf("%d abilities are missing, and the reasons are %v", missing, lacks)
		}
		for _, why := range lacks {
			if !errors.Is(why, errdefs.ErrNotSupported) {
				t.Errorf("reason %v is not ErrNotSupported", why)
			}
		}
		must(t, dev.Free(h))
		must(t, q.Close(t.Context()))
		must(t, dev.Close())
	}
}

func TestDriverThatCannotCompileKernels(t *testing.T) {
	f := newFake(t)
	api := f.api()
	api.ModuleLoadData = func([]byte) (cuda.Module, cuda.Result) { return 0, cuda.ErrorJITCompilerNotFound }
	drv, err := newDriver(api)
	must(t, err)
	dev, err := drv.Open(0, Options{})
	must(t, err)
	lacks := concrete(t, dev).Lacks()
	if len(lacks) != 1 || !strings.Contains(lacks[0].Error(), "cuModuleLoadData") {
		t.Errorf("lacks %v", lacks)
	}
	must(t, dev.Close())
}

func TestQueueRefuses(t *testing.T) {
	_, dev, q, d, h := fakeQueue(t)
	st := adopt(t, dev)
	pageable, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindHost, Device: mem.NoDevice, Len: 1 << 20, CPU: 1, Bytes: make([]byte, 1<<20)})
	must(t, err)
	word := mem.Extent{Region: h, Len: 8}
	for name, err := range map[string]error{
		"copy of unequal lengths":     q.Copy(mem.Extent{Region: d, Len: 1}, mem.Extent{Region: h, Len: 2}),
		"copy out of range":           q.Copy(mem.Extent{Region: d, Len: 2 << 20}, mem.Extent{Region: h, Len: 2 << 20}),
		"copy from pageable memory":   q.Copy(mem.All(d), mem.All(pageable)),
		"fill without region":         q.Fill(mem.Extent{}, 0),
		"fill of pageable memory":     q.Fill(mem.All(pageable), 0),
		"batch of unequal counts":     q.CopyBatch([]mem.Extent{mem.All(d)}, nil),
		"batch out of range":          q.CopyBatch([]mem.Extent{{Region: d, Off: 1, Len: 1 << 20}}, []mem.Extent{mem.All(h)}),
		"launch with few arguments":   q.Launch(&device.Kernel{Name: device.KernelCopyPaged, NArgs: 6}),
		"launch with negative blocks": q.Launch(&device.Kernel{Name: device.KernelCopyList, NArgs: 2, CTAs: -1}),
		"wait for another's event":    q.Wait(foreignEvent{}),
		"word that is short":          st.WaitValue(word.Sub(0, 4), 1),
		"word that is not aligned":    st.WaitValue(mem.Extent{Region: h, Off: 4, Len: 8}, 1),
		"word on the device":          st.WaitValue(mem.Extent{Region: d, Len: 8}, 1),
	} {
		if !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if err := q.Launch(&device.Kernel{Name: "kvlane_none"}); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("launch of no kernel: %v, want ErrNotFound", err)
	}
	// An empty copy succeeds.
	must(t, q.Copy(mem.Extent{Region: d}, mem.Extent{Region: h}))
	must(t, q.Fill(mem.Extent{Region: d}, 0))
	must(t, q.CopyBatch([]mem.Extent{{Region: d}}, []mem.Extent{{Region: h}}))
}

type foreignEvent struct{ device.Event }

func TestEventsAreReused(t *testing.T) {
	f, _, q, _, _ := fakeQueue(t)
	for range 10 {
		e, err := q.Record()
		must(t, err)
		must(t, e.Wait(t.Context()))
		must(t, q.Wait(e))
		e.Close()
		e.Close()
		if _, err := e.Done(); !errors.Is(err, errdefs.ErrClosed) {
			t.Errorf("done of a closed event: %v, want ErrClosed", err)
		}
		if err := q.Wait(e); !errors.Is(err, errdefs.ErrClosed) {
			t.Errorf("wait for a closed event: %v, want ErrClosed", err)
		}
	}
	if n := f.count("cuEventCreate"); n != 1 {
		t.Errorf("%d events were created", n)
	}
}

// A wait ends soon after its context, and does not keep a core busy before.
func TestWaitEndsWithItsContext(t *testing.T) {
	f, _, q, _, _ := fakeQueue(t)
	e, err := q.Record()
	must(t, err)
	defer e.Close()
	f.set(func() { f.state = cuda.ErrorNotReady })
	cause := errors.New("test is over")
	const wait = 200 * time.Millisecond
	ctx, cancel := context.WithTimeoutCause(t.Context(), wait, cause)
	defer cancel()
	if err := e.Wait(ctx); !errors.Is(err, cause) {
		t.Errorf("wait: %v, want its context's cause", err)
	}
	if err := q.Close(ctx); !errors.Is(err, cause) {
		t.Errorf("close: %v, want its context's cause", err)
	}
	// After the first moments there is one query per nap. Before that, naps grow from a few
	// microseconds.
	if n, most := f.count("cuEventQuery"), int(wait/(200*time.Microsecond))+1000; n > most {
		t.Errorf("%d queries in %v, expected at most %d", n, wait, most)
	}
	f.set(func() { f.state = cuda.Success })
	must(t, e.Wait(ctx)) // completed work stays completed, even for a context that has ended
}

func TestFaultBreaksEveryQueueForGood(t *testing.T) {
	f := newFake(t)
	dev := f.openOnly()
	var qs [2]all
	for i := range qs {
		q, err := dev.OpenQueue(device.QueueOptions{})
		must(t, err)
		qs[i] = able(t, q)
	}
	d, err := dev.Alloc(1<<20, device.AllocOptions{})
	must(t, err)
	h, err := dev.AllocHost(1 << 20)
	must(t, err)
	before, err := qs[0].Record()
	must(t, err)
	must(t, before.Wait(t.Context()))
	e, err := qs[0].Record()
	must(t, err)
	st := adopt(t, dev)
	f.set(func() { f.state = cuda.ErrorIllegalAddress })

	broken := func(what string, err error) {
		t.Helper()
		var native *device.Error
		if !errors.Is(err, errdefs.ErrBroken) || !errors.As(err, &native) || native.Code != int(cuda.ErrorIllegalAddress) {
			t.Errorf("%s: %v, want ErrBroken with the cause", what, err)
		}
	}
	if done, err := e.Done(); done {
		t.Error("failed work is reported as done")
	} else {
		broken("done", err)
	}
	broken("wait", e.Wait(t.Context()))
	// The device stays broken even if the driver succeeds later.
	f.set(func() { f.state = cuda.Success })
	for i, q := range qs {
		for name, op := range operations(q, st, d, h) {
			broken(fmt.Sprintf("queue %d: %s", i, name), op())
		}
	}
	if done, err := before.Done(); !done || err != nil {
		t.Errorf("work that was done before the fault: done %v, %v", done, err)
	}
	e.Close()
	before.Close()
	for _, q := range qs {
		broken("close queue", q.Close(t.Context()))
		must(t, q.Close(t.Context()))
	}
	broken("close device", dev.Close())
	left := f.left()
	if left["memory"] != 1 || left["registration"] != 1 || left["context"] != 1 {
		t.Errorf("memory that the GPU may still use was freed: %v are left", left)
	}
	// The memory is leaked on purpose, so the test removes it from the leak count.
	leak.Add(leak.DeviceBytes, -d.Len())
	leak.Add(leak.PinnedBytes, -h.Len())
	leak.Add(leak.HostBytes, -h.Len())
}

// A context that cannot be popped would stay current for other code on that thread. The device
// reports this as broken from then on.
func TestContextThatIsLostBreaksTheDevice(t *testing.T) {
	f := newFake(t)
	dev := f.openOnly()
	api := concrete(t, dev).api
	pop := api.CtxPopCurrent
	api.CtxPopCurrent = func() (cuda.Context, cuda.Result) {
		pop()
		return 0, cuda.ErrorContextIsDestroyed
	}
	q, err := dev.OpenQueue(device.QueueOptions{})
	must(t, err)
	api.CtxPopCurrent = pop
	if _, err := q.Record(); !errors.Is(err, errdefs.ErrBroken) || !strings.Contains(err.Error(), "cuCtxPopCurrent_v2") {
		t.Errorf("record: %v, want ErrBroken of cuCtxPopCurrent_v2", err)
	}
	for name, end := range map[string]error{"queue": q.Close(t.Context()), "device": dev.Close()} {
		if !errors.Is(end, errdefs.ErrBroken) {
			t.Errorf("close %s: %v, want ErrBroken", name, end)
		}
	}
}

func TestEventOutlivesItsDevice(t *testing.T) {
	f := newFake(t)
	dev := f.openOnly()
	q, err := dev.OpenQueue(device.QueueOptions{})
	must(t, err)
	e, err := q.Record()
	must(t, err)
	must(t, q.Close(t.Context()))
	must(t, dev.Close())
	if done, err := e.Done(); done || !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("done %v, %v, want ErrClosed", done, err)
	}
	e.Close()
}

func TestCloseFreesAndCountsWhatIsLeft(t *testing.T) {
	f := newFake(t)
	dev := f.openOnly()
	q, err := dev.OpenQueue(device.QueueOptions{})
	must(t, err)
	for range 2 {
		_, err := dev.Alloc(1000, device.AllocOptions{Shareable: true})
		must(t, err)
	}
	_, err = dev.AllocHost(500)
	must(t, err)
	err = dev.Close()
	for _, want := range []string{"1 queues", "3 regions", "2500 bytes"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v lacks %q", err, want)
		}
	}
	if left := f.left(); left != nil {
		t.Errorf("objects left in the driver: %v", left)
	}
	f.clean()
	must(t, dev.Close())
	if _, err := dev.Alloc(1, device.AllocOptions{}); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("alloc on a closed device: %v, want ErrClosed", err)
	}
	if _, err := q.Record(); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("record on a queue of a closed device: %v, want ErrClosed", err)
	}
}

func TestCloseKeepsWhatABusyQueueMayUse(t *testing.T) {
	f := newFake(t)
	dev := f.openOnly()
	_, err := dev.OpenQueue(device.QueueOptions{})
	must(t, err)
	_, err = dev.Alloc(1000, device.AllocOptions{})
	must(t, err)
	f.set(func() { f.state = cuda.ErrorNotReady })
	if err := dev.Close(); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("close: %v, want ErrBusy", err)
	}
	if left := f.left(); left["memory"] != 1 || left["context"] != 1 {
		t.Errorf("memory that the queue may use was freed: %v are left", left)
	}
	leak.Add(leak.DeviceBytes, -1000) // on purpose
}
