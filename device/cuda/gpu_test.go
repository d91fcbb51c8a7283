package cuda_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda"
	"github.com/kvlane/kvlane/device/devicetest"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
)

// driver returns the driver, or skips the test if this machine has no GPU.
func driver(tb testing.TB) (drv *cuda.Driver, gpus int) {
	tb.Helper()
	drv, err := cuda.Load()
	if errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(tb, "cuda", err.Error())
	}
	if err != nil {
		tb.Fatal(err)
	}
	n, err := drv.Count()
	if err != nil {
		tb.Fatal(err)
	}
	return drv, n
}

// fixture is one GPU with a queue. Its methods fail the test on errors.
type fixture struct {
	testing.TB
	dev device.Device
	q   device.Queue
}

func newFixture(tb testing.TB) *fixture {
	tb.Helper()
	drv, _ := driver(tb)
	dev, err := drv.Open(0, cuda.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := dev.Close(); err != nil {
			tb.Errorf("close device: %v", err)
		}
	})
	f := &fixture{TB: tb, dev: dev}
	f.q = f.queue()
	return f
}

func (f *fixture) queue() device.Queue {
	f.Helper()
	q, err := f.dev.OpenQueue(device.QueueOptions{HighPriority: true})
	f.must(err)
	f.Cleanup(func() {
		if err := q.Close(context.Background()); err != nil {
			f.Errorf("close queue: %v", err)
		}
	})
	return q
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) region(r *mem.Region, err error) *mem.Region {
	f.Helper()
	f.must(err)
	f.Cleanup(func() {
		if err := f.dev.Free(r); err != nil {
			f.Errorf("free: %v", err)
		}
	})
	return r
}

func (f *fixture) device(bytes int64) *mem.Region {
	f.Helper()
	return f.region(f.dev.Alloc(bytes, device.AllocOptions{}))
}

func (f *fixture) pinned(bytes int64) *mem.Region {
	f.Helper()
	return f.region(f.dev.AllocHost(bytes))
}

func (f *fixture) launch(name string, args ...uint64) {
	f.Helper()
	k := device.Kernel{Name: name, NArgs: len(args)}
	copy(k.Args[:], args)
	l, ok := f.q.(device.Launcher)
	if !ok {
		testkit.Skip(f, "kernels", "the queue runs no kernels")
	}
	f.must(l.Launch(&k))
}

// sync waits until all enqueued work is done.
func (f *fixture) sync() {
	f.Helper()
	e, err := f.q.Record()
	f.must(err)
	defer e.Close()
	f.must(e.Wait(f.Context()))
}

func TestGPUConformance(t *testing.T) {
	drv, n := driver(t)
	for i := range n {
		t.Run(fmt.Sprintf("device %d", i), func(t *testing.T) {
			devicetest.Run(t, func(t *testing.T) device.Device {
				dev, err := drv.Open(i, cuda.Options{})
				if err != nil {
					t.Fatal(err)
				}
				return dev
			})
		})
	}
}

func TestGPUInfo(t *testing.T) {
	drv, n := driver(t)
	for i := range n {
		dev, err := drv.Open(i, cuda.Options{})
		if err != nil {
			t.Fatal(err)
		}
		in := dev.Info()
		t.Logf("driver %s: %+v", drv.Version(), in)
		if d, ok := dev.(*cuda.Device); ok {
			t.Logf("lacks %v", d.Lacks())
		}
		if in.Driver != "cuda" || in.Index != i || in.Name == "" || len(in.UUID) != len("GPU-")+36 || in.PCI == "" ||
			in.MemoryBytes <= 0 || in.Multiprocs <= 0 || in.Compute[0] <= 0 || in.CopyEngines <= 0 || in.DriverVersion == "" {
			t.Errorf("info is incomplete: %+v", in)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := drv.Open(n, cuda.Options{}); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("open device %d of %d: %v, want ErrNotFound", n, n, err)
	}
}

func notSupported(err error) bool { return errors.Is(err, errdefs.ErrNotSupported) }
