package cuda

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/cuda"
	"github.com/kvlane/kvlane/mem"
)

// exporting returns a device with dma-bufs. Its driver returns memory files instead of dma-bufs.
// ranges are the requested ranges.
func exporting(t *testing.T, f *fake) (d *Device, ranges *[][2]uint64) {
	t.Helper()
	f.rdma = map[cuda.Attribute]int{cuda.AttrDMABuf: 1}
	d = concrete(t, f.open())
	ranges = new([][2]uint64)
	d.api.MemExportDMABuf = func(p cuda.DevicePtr, bytes uint64) (int, cuda.Result) {
		*ranges = append(*ranges, [2]uint64{uint64(p), bytes})
		if r := f.enter("cuMemGetHandleForAddressRange", contextRelaxed); r != cuda.Success {
			return 0, r
		}
		fd, err := unix.MemfdCreate("dma-buf", unix.MFD_CLOEXEC)
		must(t, err)
		return fd, cuda.Success
	}
	return d, ranges
}

// foreign returns n bytes at addr that the host program allocated on device index.
func foreign(t *testing.T, index int, addr mem.DevAddr, n int64) *mem.Region {
	t.Helper()
	r, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Device: index, Len: n, Dev: addr})
	must(t, err)
	return r
}

// TestExportIsOfWholePages checks that the driver gets whole host pages, and that the offset is the
// position of the bytes in them.
func TestExportIsOfWholePages(t *testing.T) {
	d, ranges := exporting(t, newFake(t))
	page := uint64(unix.Getpagesize())
	r := foreign(t, 0, mem.DevAddr(10*page+100), 5*int64(page))
	for _, tt := range []struct {
		off, n       int64
		start, bytes uint64
		at           int64
	}{
		{0, 1, 10 * page, page, 100},
		{0, 5 * int64(page), 10 * page, 6 * page, 100},
		{int64(page) - 100, int64(page), 11 * page, page, 0},
		{int64(page) - 101, 2, 10 * page, 2 * page, int64(page) - 1},
	} {
		*ranges = nil
		fd, off, err := d.ExportDMABuf(mem.Extent{Region: r, Off: tt.off, Len: tt.n})
		must(t, err)
		must(t, unix.Close(fd))
		if want := [2]uint64{tt.start, tt.bytes}; (*ranges)[0] != want || off != tt.at {
			t.Errorf("%d bytes at %d: exported %#x, offset %d; want %#x, %d", tt.n, tt.off, (*ranges)[0], off, want, tt.at)
		}
	}
	for _, size := range []uint64{4 << 10, 64 << 10} {
		if start, end := pages(3*size-1, 2, size); start != 2*size || end != 4*size {
			t.Errorf("pages of %d: %#x to %#x", size, start, end)
		}
	}
}

func TestExportRefuses(t *testing.T) {
	d, _ := exporting(t, newFake(t))
	pinned, err := d.AllocHost(4096)
	must(t, err)
	defer func() { must(t, d.Free(pinned)) }()
	own := foreign(t, 0, 0x10000, 4096)
	for name, e := range map[string]mem.Extent{
		"no region": {}, "pinned memory": mem.All(pinned), "another device": mem.All(foreign(t, 1, 0x10000, 4096)),
		"beyond the address space": {Region: own, Off: 4000, Len: 200}, "nothing": {Region: own},
	} {
		if fd, _, err := d.ExportDMABuf(e); !errors.Is(err, errdefs.ErrInvalid) || fd >= 0 {
			t.Errorf("%s: descriptor %d, %v", name, fd, err)
		}
	}
}

// TestNothingToExportWith checks that the error names the missing ability and wraps
// ErrNotSupported.
func TestNothingToExportWith(t *testing.T) {
	f := newFake(t)
	d, ranges := exporting(t, f)
	e := mem.All(foreign(t, 0, 0x10000, 4096))
	refused := func(says string) {
		t.Helper()
		_, _, err := d.ExportDMABuf(e)
		if !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v, which should contain %s", err, says)
		}
	}
	d.api.MemExportDMABuf = nil
	refused("cuMemGetHandleForAddressRange")
	f.rdma[cuda.AttrDMABuf] = 0
	refused("CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED")
	if len(*ranges) > 0 {
		t.Error("the driver was still called")
	}
}

// TestNeedsFlush covers every write ordering of NICs that a driver may report.
func TestNeedsFlush(t *testing.T) {
	for _, tt := range []struct {
		ordering cuda.RDMAScope
		options  int
		symbol   bool
		needs    bool
		err      error
	}{
		{cuda.RDMAScopeAllDevices, 0, true, false, nil},
		{cuda.RDMAScopeAllDevices, 1, false, false, nil},
		{cuda.RDMAScopeOwner, 3, true, true, nil},
		{cuda.RDMAScopeNone, 1, true, true, nil},
		{cuda.RDMAScopeNone, 2, true, true, errdefs.ErrNotSupported},
		{cuda.RDMAScopeOwner, 1, false, true, errdefs.ErrNotSupported},
	} {
		f := newFake(t)
		f.rdma = map[cuda.Attribute]int{cuda.AttrRDMAOrdering: int(tt.ordering), cuda.AttrRDMAFlushOptions: tt.options}
		d := concrete(t, f.open())
		if !tt.symbol {
			d.api.FlushGPUDirectRDMAWrites = nil
		}
		needs, err := d.NeedsFlush()
		if needs != tt.needs || !errors.Is(err, tt.err) {
			t.Errorf("%+v: needs it %v, %v", tt, needs, err)
		}
		if err := d.FlushRemoteWrites(); errors.Is(err, errdefs.ErrNotSupported) == tt.symbol {
			t.Errorf("%+v: flush: %v", tt, err)
		}
	}
}

// TestRDMACallsReport checks that the error names every driver call that fails.
func TestRDMACallsReport(t *testing.T) {
	f := newFake(t)
	d, _ := exporting(t, f)
	e := mem.All(foreign(t, 0, 0x10000, 4096))
	for name, do := range map[string]func() error{
		"export": func() error {
			fd, _, err := d.ExportDMABuf(e)
			if err == nil {
				err = unix.Close(fd)
			}
			return err
		},
		"needs flush": func() error { _, err := d.NeedsFlush(); return err },
		"flush":       d.FlushRemoteWrites,
	} {
		f.set(func() { f.rdma[cuda.AttrRDMAFlushOptions] = cuda.FlushByHost })
		for n := 0; ; n++ {
			f.failNth(n, cuda.ErrorOutOfMemory)
			err := do()
			if f.failedCall() == "" {
				f.failNth(-1, cuda.Success)
				if err != nil || n < 2 {
					t.Errorf("%s: %d calls were made to fail, then: %v", name, n, err)
				}
				break
			}
			reports(t, f, err)
		}
	}
}

// TestClosedDeviceExportsNothing checks that a closed device, whose context is released, exports no
// memory.
func TestClosedDeviceExportsNothing(t *testing.T) {
	f := newFake(t)
	d := concrete(t, f.openOnly())
	must(t, d.Close())
	_, _, err := d.ExportDMABuf(mem.All(foreign(t, 0, 0x10000, 4096)))
	_, needsErr := d.NeedsFlush()
	for _, err := range []error{err, needsErr, d.FlushRemoteWrites()} {
		if !errors.Is(err, errdefs.ErrClosed) {
			t.Errorf("closed device: %v", err)
		}
	}
}

// TestShareableMemoryIsForNICsToo checks that NICs can access shareable memory if the device
// supports it.
func TestShareableMemoryIsForNICsToo(t *testing.T) {
	for _, can := range []int{0, 1} {
		f := newFake(t)
		f.rdma = map[cuda.Attribute]int{cuda.AttrRDMAVirtualMemory: can}
		d := concrete(t, f.open())
		create := d.api.MemCreate
		var asked []bool
		d.api.MemCreate = func(bytes uint64, p cuda.MemProp) (cuda.MemHandle, cuda.Result) {
			asked = append(asked, p.RDMA)
			return create(bytes, p)
		}
		r, err := d.Alloc(4096, device.AllocOptions{Shareable: true})
		must(t, err)
		must(t, d.Free(r))
		if len(asked) != 1 || asked[0] != (can != 0) {
			t.Errorf("attribute %d: requested %v", can, asked)
		}
	}
}
