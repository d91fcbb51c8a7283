package cuda

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/internal/sys/cuda"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// allocators returns all ways to get a region.
func allocators(t *testing.T) map[string]func(device.Device) (*mem.Region, error) {
	t.Helper()
	b, err := hostmem.Alloc(10000)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := hostmem.Free(b); err != nil {
			t.Error(err)
		}
	})
	all := map[string]func(device.Device) (*mem.Region, error){
		"plain": func(d device.Device) (*mem.Region, error) { return d.Alloc(10000, device.AllocOptions{}) },
		"shareable": func(d device.Device) (*mem.Region, error) {
			return d.Alloc(10000, device.AllocOptions{Shareable: true})
		},
		"pinned":     func(d device.Device) (*mem.Region, error) { return d.AllocHost(10000) },
		"registered": func(d device.Device) (*mem.Region, error) { return d.RegisterHost(b) },
		"fabric": func(d device.Device) (*mem.Region, error) {
			return d.Alloc(10000, device.AllocOptions{Shareable: true, Handle: device.HandleFabric})
		},
	}
	for _, by := range []device.HandleType{device.HandleFabric, device.HandlePosixFD, device.HandleCUDAIPC} {
		all["imported "+by.String()] = func(d device.Device) (*mem.Region, error) {
			s, ok := d.(device.Sharer)
			if !ok {
				return nil, errdefs.ErrNotSupported
			}
			return s.ImportMemory(device.Handle{Type: by, Device: fakeUUID, FD: fakeFD, Bytes: fakeGrain})
		}
	}
	return all
}

func reports(t *testing.T, f *fake, err error) {
	t.Helper()
	var native *device.Error
	if !errors.As(err, &native) {
		t.Fatalf("%s failed, and the error is %v", f.failedCall(), err)
	}
	if native.Call != f.failedCall() || native.Code != int(cuda.ErrorOutOfMemory) || native.Name == "" || native.Text == "" {
		t.Errorf("%s failed, and the error is of %s: %v", f.failedCall(), native.Call, err)
	}
	if !errors.Is(err, errdefs.ErrNoMemory) {
		t.Errorf("error %v is not ErrNoMemory", err)
	}
}

func TestFailedAllocIsUndone(t *testing.T) {
	for name, alloc := range allocators(t) {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			dev := f.open()
			before, counted := f.left(), leak.Live()
			for n := 0; ; n++ {
				f.failNth(n, cuda.ErrorOutOfMemory)
				r, err := alloc(dev)
				if f.failedCall() == "" {
					if err != nil {
						t.Fatalf("no call failed, but Alloc returned: %v", err)
					}
					if n < 3 {
						t.Errorf("only %d calls were made to fail", n)
					}
					f.failNth(-1, cuda.Success)
					if err := dev.Free(r); err != nil {
						t.Fatal(err)
					}
					break
				}
				reports(t, f, err)
				sameCounts(t, before, f.left())
			}
			sameCounts(t, before, f.left())
			sameCounts(t, counted, leak.Live())
		})
	}
}

func sameCounts[N int | int64](t *testing.T, want, got map[string]N) {
	t.Helper()
	for k := range got {
		if got[k] != want[k] {
			t.Errorf("%s: %d are left, there were %d", k, got[k], want[k])
		}
	}
}

// A free that fails halfway can be repeated, and continues where it stopped.
func TestFreeCanBeRepeatedAfterTheNthCallFailed(t *testing.T) {
	for name, alloc := range allocators(t) {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			dev := f.open()
			for n := 0; ; n++ {
				r, err := alloc(dev)
				if err != nil {
					t.Fatal(err)
				}
				f.failNth(n, cuda.ErrorOutOfMemory)
				err = dev.Free(r)
				failed := f.failedCall()
				if failed != "" {
					reports(t, f, err)
				}
				f.failNth(-1, cuda.Success)
				if failed != "" {
					err = dev.Free(r)
				}
				if err != nil {
					t.Fatalf("free after a failure of %q: %v", failed, err)
				}
				if failed == "" {
					break
				}
			}
		})
	}
}

func TestAllocKeepsTheErrorOfUndoing(t *testing.T) {
	f := newFake(t)
	dev := f.open()
	api := concrete(t, dev).api
	free := api.MemAddressFree
	api.MemSetAccess = func(cuda.DevicePtr, uint64, cuda.DeviceID) cuda.Result { return cuda.ErrorNotSupported }
	api.MemAddressFree = func(cuda.DevicePtr, uint64) cuda.Result { return cuda.ErrorInvalidValue }
	_, err := dev.Alloc(1, device.AllocOptions{Shareable: true})
	for _, want := range []string{"cuMemSetAccess", "cuMemAddressFree"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v lacks %s", err, want)
		}
	}
	// The object whose release failed stays, as intended. The test removes it.
	api.MemAddressFree = free
	f.set(func() { clear(f.alive["reservation"]); clear(f.alive["handle"]) })
}

func TestRegions(t *testing.T) {
	for name, alloc := range allocators(t) {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			dev := f.open()
			r, err := alloc(dev)
			if err != nil {
				t.Fatal(err)
			}
			host := name == "pinned" || name == "registered"
			want := int64(10000)
			if strings.HasPrefix(name, "imported") {
				want = fakeGrain
			}
			if r.Len() != want || r.Dev() == 0 || (r.CPU() != 0) != host || (r.Bytes() != nil) != host || r.Device() != 0 {
				t.Errorf("region is %v", r)
			}
			if host && uint64(r.Dev()) != uint64(r.CPU())^1<<60 {
				t.Errorf("device address %#x differs from the driver's address for %#x", r.Dev(), r.CPU())
			}
			other := newFake(t).open()
			if err := other.Free(r); !errors.Is(err, errdefs.ErrInvalid) {
				t.Errorf("free memory of another device: %v, want ErrInvalid", err)
			}
			// Of two concurrent calls of Free, one succeeds.
			var freed atomic.Int32
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					if dev.Free(r) == nil {
						freed.Add(1)
					}
				})
			}
			wg.Wait()
			if freed.Load() != 1 {
				t.Errorf("freed %d times", freed.Load())
			}
			if err := dev.Free(r); !errors.Is(err, errdefs.ErrInvalid) {
				t.Errorf("free again: %v, want ErrInvalid", err)
			}
		})
	}
}

func TestAllocRefusesSizes(t *testing.T) {
	dev := newFake(t).open()
	for _, n := range []int64{0, -1} {
		for _, o := range []device.AllocOptions{{}, {Shareable: true}} {
			if _, err := dev.Alloc(n, o); !errors.Is(err, errdefs.ErrInvalid) {
				t.Errorf("alloc %d bytes: %v, want ErrInvalid", n, err)
			}
		}
		if _, err := dev.AllocHost(n); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("alloc %d bytes of host memory: %v, want ErrInvalid", n, err)
		}
	}
	if _, err := dev.Alloc(1<<63-1, device.AllocOptions{Shareable: true}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("alloc more than can be rounded: %v, want ErrInvalid", err)
	}
	if _, err := dev.RegisterHost(nil); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("register nothing: %v, want ErrInvalid", err)
	}
	if err := dev.Free(nil); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("free nothing: %v, want ErrInvalid", err)
	}
}

func TestTouchReachesEveryPage(t *testing.T) {
	for _, n := range []int{1, pageBytes, pageBytes + 1, 3*touchPart + 5*pageBytes + 7} {
		b := make([]byte, n)
		for i := 0; i < n; i += pageBytes {
			b[i] = 1
		}
		touch(b)
		for i := 0; i < n; i += pageBytes {
			if b[i] != 0 {
				t.Fatalf("%d bytes: page %d was not touched", n, i/pageBytes)
			}
		}
	}
}

func TestAllocHostRefusesMoreThanThereIs(t *testing.T) {
	f := newFake(t)
	dev := f.open()
	// More than any machine has, but little enough to be mapped.
	if _, err := dev.AllocHost(100 << 40); !errors.Is(err, errdefs.ErrNoMemory) {
		t.Errorf("alloc 100 TiB: %v, want ErrNoMemory", err)
	}
}
