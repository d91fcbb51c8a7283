package host_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/devicetest"
	"github.com/kvlane/kvlane/device/host"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func open(t *testing.T) device.Device {
	t.Helper()
	d, err := host.Open()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConformance(t *testing.T) { devicetest.Run(t, open) }

// opened returns a device. Its Close must succeed when the test ends.
func opened(t *testing.T) device.Device {
	t.Helper()
	d := open(t)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func queue(t *testing.T, d device.Device) *host.Queue {
	t.Helper()
	q, err := d.OpenQueue(device.QueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	hq, ok := q.(*host.Queue)
	if !ok {
		t.Fatalf("the device opened a %T", q)
	}
	return hq
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// finish waits for the work of q and returns its error.
func finish(t *testing.T, q device.Queue) error {
	t.Helper()
	e, err := q.Record()
	must(t, err)
	defer e.Close()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience())
	defer cancel()
	return e.Wait(ctx)
}

// mapped returns memory of the process that is not registered with any device.
func mapped(t *testing.T, n int64) []byte {
	t.Helper()
	b, err := hostmem.Alloc(n)
	must(t, err)
	return b
}

// region returns a region for memory at its address, as a host program would.
func region(t *testing.T, b []byte, index int) *mem.Region {
	t.Helper()
	r, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Device: index, Len: int64(len(b)), Dev: mem.DevAddr(hostmem.Addr(b))})
	must(t, err)
	return r
}

func TestAddressesAreTheProcesss(t *testing.T) {
	d := opened(t)
	own, err := d.Alloc(1<<20, device.AllocOptions{})
	must(t, err)
	pinned, err := d.AllocHost(1 << 20)
	must(t, err)
	if uint64(pinned.CPU()) != uint64(pinned.Dev()) {
		t.Errorf("pinned memory has two addresses: %s", pinned)
	}
	hostmem.View(mem.CPUAddr(own.Dev()), 8)[7] = 42
	b := mapped(t, 1<<20)
	q := queue(t, d)
	must(t, q.Copy(mem.All(region(t, b, 0)), mem.All(own)))
	must(t, finish(t, q))
	if b[7] != 42 {
		t.Error("the copy used the wrong memory")
	}
	must(t, errors.Join(q.Close(t.Context()), d.Free(own), d.Free(pinned), hostmem.Free(b)))
}

// An access to an unmapped address breaks only the queue that made it. This holds for copies, fills
// and kernels of any length.
func TestBadAddressesBreakTheQueue(t *testing.T) {
	const n = 4 << 20
	d := opened(t)
	p, err := d.AllocHost(n)
	must(t, err)
	gone := mapped(t, n)
	bad := region(t, gone, 0)
	must(t, hostmem.Free(gone))
	list := func(dst, src, bytes uint64) *device.Kernel {
		device.CopyDesc{Dst: mem.DevAddr(dst), Src: mem.DevAddr(src), Bytes: bytes}.Put(p.Bytes())
		k := device.ListArgs{Descs: p.Dev(), Count: 1}.Kernel(device.KernelCopyList, 0)
		return &k
	}
	other := queue(t, d)
	for name, enqueue := range map[string]func(q *host.Queue) error{
		"copy to":   func(q *host.Queue) error { return q.Copy(mem.All(bad), mem.All(p)) },
		"copy from": func(q *host.Queue) error { return q.Copy(mem.All(p), mem.All(bad)) },
		"short copy": func(q *host.Queue) error {
			return q.Copy(mem.Extent{Region: p, Len: 8}, mem.Extent{Region: bad, Len: 8})
		},
		"fill":            func(q *host.Queue) error { return q.Fill(mem.All(bad), 1) },
		"kernel":          func(q *host.Queue) error { return q.Launch(list(uint64(bad.Dev()), uint64(p.Dev()), 8)) },
		"address zero":    func(q *host.Queue) error { return q.Launch(list(0, uint64(p.Dev()), 8)) },
		"not canonical":   func(q *host.Queue) error { return q.Launch(list(0x0d00_0000_0000_0000, uint64(p.Dev()), 8)) },
		"endless":         func(q *host.Queue) error { return q.Launch(list(uint64(p.Dev()), uint64(p.Dev())+64, 1<<63)) },
		"arguments":       func(q *host.Queue) error { k := list(0, 0, 0); k.Args[0] = uint64(bad.Dev()); return q.Launch(k) },
		"unaligned":       func(q *host.Queue) error { k := list(0, 0, 0); k.Args[0]++; return q.Launch(k) },
		"waits for a bad": func(q *host.Queue) error { return waitForBroken(t, d, q, bad) },
	} {
		q := queue(t, d)
		must(t, enqueue(q))
		err := finish(t, q)
		var native *device.Error
		if !errors.Is(err, errdefs.ErrInvalid) || !errors.As(err, &native) {
			t.Errorf("%s: %v", name, err)
		}
		if err := q.Fill(mem.All(p), 1); !errors.Is(err, errdefs.ErrBroken) {
			t.Errorf("%s: work on the broken queue: %v", name, err)
		}
		must(t, q.Close(t.Context()))
	}
	must(t, other.Fill(mem.All(p), 7))
	must(t, finish(t, other))
	must(t, errors.Join(other.Close(t.Context()), d.Free(p)))
}

// waitForBroken makes q wait for a queue that fails.
func waitForBroken(t *testing.T, d device.Device, q *host.Queue, bad *mem.Region) error {
	t.Helper()
	broken := queue(t, d)
	must(t, broken.Fill(mem.All(bad), 1))
	e, err := broken.Record()
	must(t, err)
	err = q.Wait(e)
	e.Close()
	_ = broken.Close(t.Context()) // it may be the first call to report the failure
	return err
}

func TestUnreportedFailureIsReportedByClose(t *testing.T) {
	d := opened(t)
	gone := mapped(t, 4096)
	bad := region(t, gone, 0)
	must(t, hostmem.Free(gone))
	q := queue(t, d)
	must(t, q.Fill(mem.All(bad), 1))
	if err := q.Close(t.Context()); !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), "SIGSEGV") {
		t.Errorf("close: %v", err)
	}
	must(t, q.Close(t.Context()))
}

func TestRefusals(t *testing.T) {
	d := opened(t)
	q := queue(t, d)
	p, err := d.AllocHost(8192)
	must(t, err)
	b := mapped(t, 8192)
	if _, err := d.RegisterHost(p.Bytes()[:100]); !errors.Is(err, errdefs.ErrExists) {
		t.Errorf("registering pinned memory: %v", err)
	}
	if _, err := d.RegisterHost(make([]byte, 1<<20)); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("registering Go memory: %v", err)
	}
	if err := q.Fill(mem.All(region(t, b, 1)), 1); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("memory of another device: %v", err)
	}
	elsewhere, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindHostPinned, Len: 8192, CPU: hostmem.Addr(b), Bytes: b, Dev: 1 << 60})
	must(t, err)
	if err := q.Fill(mem.All(elsewhere), 1); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("memory that another device has pinned: %v", err)
	}
	if !q.HasKernel(device.KernelCopyPartsSum) {
		t.Error("the queue lacks the kernel that copies and sums parts")
	}
	must(t, errors.Join(q.Close(t.Context()), d.Free(p), hostmem.Free(b)))
}

// Close waits for running work. Work that has not started fails, and its waiters get the error.
func TestCloseEndsWork(t *testing.T) {
	const n = 64 << 20
	d := open(t)
	p, err := d.AllocHost(n)
	must(t, err)
	q, waiting := queue(t, d), queue(t, d)
	for range 8 {
		must(t, q.Fill(mem.All(p), 1))
	}
	e, err := q.Record()
	must(t, err)
	must(t, waiting.Wait(e))
	last, err := waiting.Record()
	must(t, err)
	if err := d.Close(); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("close with work: %v", err)
	}
	for _, e := range []device.Event{e, last} {
		if done, err := e.Done(); !done || err != nil && !errors.Is(err, errdefs.ErrClosed) {
			t.Errorf("after the device closed: done %v, %v", done, err)
		}
		e.Close()
		e.Close()
	}
	must(t, q.Close(t.Context()))
}
