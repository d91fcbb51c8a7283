package cuda

import (
	"errors"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/cuda"
	"github.com/kvlane/kvlane/mem"
)

func TestCapturingStreamsAreRefused(t *testing.T) {
	f, dev, _, _, h := fakeQueue(t)
	st := adopt(t, dev)
	f.set(func() { f.capture = 1 })
	if _, err := concrete(t, dev).AdoptStream(7); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("adopt: %v, want ErrNotSupported", err)
	}
	if _, err := st.Record(); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("record: %v, want ErrNotSupported", err)
	}
	if err := st.WaitValue(mem.Extent{Region: h, Len: 8}, 1); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("wait: %v, want ErrNotSupported", err)
	}
	if n := f.count("cuEventRecord") + f.count("cuStreamWaitValue64_v2"); n != 0 {
		t.Errorf("%d calls reached the stream", n)
	}
	f.set(func() { f.capture = cuda.CaptureNone })
}

func TestStreamsOfOthersAreRefused(t *testing.T) {
	dev := newFake(t).open()
	for name, handle := range map[string]cuda.Stream{"another context's": strangeStream, "each thread's default": cuda.StreamPerThread} {
		if _, err := concrete(t, dev).AdoptStream(uintptr(handle)); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s stream: %v, want ErrInvalid", name, err)
		}
	}
	must(t, dev.Close())
	if _, err := concrete(t, dev).AdoptStream(7); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("adopt a stream on a closed device: %v, want ErrClosed", err)
	}
}

// Events for streams of the host program are created before one of the streams waits.
func TestAdoptReportsTheNthFailingCall(t *testing.T) {
	f, dev, _, _, _ := fakeQueue(t)
	for n := 0; ; n++ {
		f.failNth(n, cuda.ErrorOutOfMemory)
		_, err := concrete(t, dev).AdoptStream(7)
		failed := f.failedCall()
		f.failNth(-1, cuda.Success)
		if failed == "" {
			must(t, err)
			break
		}
		var native *device.Error
		if !errors.As(err, &native) || native.Call != failed {
			t.Errorf("%s failed, and the error is %v", failed, err)
		}
	}
}

func TestEventsAreMadeAhead(t *testing.T) {
	const ahead = 20
	f := newFake(t)
	dev := f.open()
	for range 3 { // the next queue uses the events that the previous one reserved
		q, err := dev.OpenQueue(device.QueueOptions{Events: ahead})
		must(t, err)
		if n := f.count("cuEventCreate"); n != ahead {
			t.Fatalf("%d events were made, want %d", n, ahead)
		}
		var events []device.Event
		for range ahead {
			e, err := q.Record()
			must(t, err)
			events = append(events, e)
		}
		if n := f.count("cuEventCreate"); n != ahead {
			t.Errorf("recording made %d events more", n-ahead)
		}
		for _, e := range events {
			e.Close()
		}
		must(t, q.Close(t.Context()))
	}
	st := adopt(t, dev)
	made := f.count("cuEventCreate")
	for range hostEvents {
		e, err := st.Record()
		must(t, err)
		defer e.Close()
	}
	if n := f.count("cuEventCreate"); n != made {
		t.Errorf("recording on a stream of the host program made %d events", n-made)
	}
}

// A kernel that is loaded at its first launch may have to wait for the stream that waits for it.
func TestKernelsAreLoadedWhenTheDeviceOpens(t *testing.T) {
	for _, call := range []string{"cuFuncLoad", "cuFuncGetAttribute"} {
		f := newFake(t)
		api := f.api()
		if call != "cuFuncLoad" {
			api.FuncLoad = nil // as in drivers before CUDA 12.4
		}
		drv, err := newDriver(api)
		must(t, err)
		dev, err := drv.Open(0, Options{})
		must(t, err)
		if got, all := f.count(call), f.count("cuModuleGetFunction"); got != all || all == 0 {
			t.Errorf("%s loads %d of %d kernels", call, got, all)
		}
		must(t, dev.Close())
	}
}

// The wait flushes writes of NICs if the GPU may see them late and can flush them.
func TestWaitFlushesWhereItMust(t *testing.T) {
	for _, tt := range []struct {
		name              string
		ordering, flushes int
		missing           bool
		want              uint32
	}{
		{"in order for the device", int(cuda.RDMAScopeOwner), 1, false, cuda.StreamWaitValueGEQ},
		{"in no order", int(cuda.RDMAScopeNone), 1, false, cuda.StreamWaitValueGEQ | cuda.StreamWaitValueFlush},
		{"in no order, and no flush", int(cuda.RDMAScopeNone), 0, false, cuda.StreamWaitValueGEQ},
		{"a driver that lacks it", 0, 0, true, 0},
	} {
		f := newFake(t)
		f.rdma = map[cuda.Attribute]int{cuda.AttrRDMAOrdering: tt.ordering, cuda.AttrFlushRemoteWrites: tt.flushes}
		api := f.api()
		if tt.missing {
			api.StreamWaitValue64 = nil
		}
		drv, err := newDriver(api)
		must(t, err)
		dev, err := drv.Open(0, Options{})
		must(t, err)
		h, err := dev.AllocHost(8)
		must(t, err)
		err = adopt(t, dev).WaitValue(mem.All(h), 1)
		if tt.missing != errors.Is(err, errdefs.ErrNotSupported) || f.waitFlags != tt.want {
			t.Errorf("%s: %v, flags %#x, want %#x", tt.name, err, f.waitFlags, tt.want)
		}
		must(t, dev.Free(h))
		must(t, dev.Close())
	}
}

func TestWaitLimit(t *testing.T) {
	for env, want := range map[string]int{"": 3, "8": 4, "32": 28, "16": 12, "5": 1, "1": 1, "64": 3, "many": 3} {
		if got := waitLimit(env); got != want {
			t.Errorf("%q connections: %d streams may wait, want %d", env, got, want)
		}
	}
}
