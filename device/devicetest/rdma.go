package devicetest

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
)

// testExportDMABuf checks that descriptors are long enough, belong to the caller, and can be
// closed.
func testExportDMABuf(t *testing.T, h *harness) {
	x, ok := h.dev.(device.DMABufExporter)
	if !ok {
		testkit.Skip(t, "dma-buf", "this device exports no memory")
	}
	const n = 1<<20 + 100
	shareable, err := h.dev.Alloc(n, device.AllocOptions{Shareable: true})
	for kind, r := range map[string]*mem.Region{
		"small": h.device(t, 100), "small too": h.device(t, 5000), "plain": h.device(t, n), "shareable": h.keep(t, shareable, err),
	} {
		for _, e := range []mem.Extent{mem.All(r), extent(r, 0, 1), extent(r, r.Len()/3, r.Len()/2), extent(r, r.Len()-1, 1)} {
			fd, off, err := x.ExportDMABuf(e)
			if errors.Is(err, errdefs.ErrNotSupported) {
				testkit.Skip(t, "dma-buf", err.Error())
			}
			if err != nil {
				t.Errorf("%s memory, %d bytes at %d: %v", kind, e.Len, e.Off, err)
				continue
			}
			checkDMABuf(t, fd, off, e)
		}
	}
	pinned := h.pinned(t, 4096)
	for name, e := range map[string]mem.Extent{"host memory": mem.All(pinned), "no region": {}, "beyond the end": {Region: pinned, Off: 4000, Len: 200}} {
		if fd, _, err := x.ExportDMABuf(e); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: descriptor %d, %v", name, fd, err)
		}
	}
}

// checkDMABuf checks that the descriptor is a dma-buf that contains e at off, and closes it.
func checkDMABuf(t *testing.T, fd int, off int64, e mem.Extent) {
	t.Helper()
	size, err := unix.Seek(fd, 0, unix.SEEK_END)
	if err != nil || off < 0 || off > size-e.Len {
		t.Errorf("%d bytes at %d of a dma-buf of %d: %v", e.Len, off, size, err)
	}
	// ibv_reg_dmabuf_mr requires this
	if page := int64(unix.Getpagesize()); off%page != int64(e.Dev())%page {
		t.Errorf("offset %d, and the address is %#x", off, uint64(e.Dev()))
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("child processes inherit the descriptor: flags %#x, %v", flags, err)
	}
	if err := unix.Close(fd); err != nil {
		t.Errorf("close the descriptor: %v", err)
	}
}

// testFlushRemoteWrites only checks that the results of the two methods agree, because it cannot
// write like a NIC.
func testFlushRemoteWrites(t *testing.T, h *harness) {
	open := func(d device.Device) device.RemoteWriteFlusher {
		f, ok := d.(device.RemoteWriteFlusher)
		if !ok {
			testkit.Skip(t, "remote-writes", "this device knows nothing of NICs' writes")
		}
		return f
	}
	f := open(h.dev)
	needs, err := f.NeedsFlush()
	if second, againErr := f.NeedsFlush(); second != needs || (err == nil) != (againErr == nil) {
		t.Errorf("needs a flush: first %v, %v, then %v, %v", needs, err, second, againErr)
	}
	if err != nil && !errors.Is(err, errdefs.ErrNotSupported) {
		t.Fatal(err)
	}
	flushErr := f.FlushRemoteWrites()
	if impossible := err != nil || !needs; flushErr != nil && (!impossible || !errors.Is(flushErr, errdefs.ErrNotSupported)) {
		t.Errorf("needs a flush: %v, %v; flush: %v", needs, err, flushErr)
	}
	t.Logf("needs a flush: %v, %v; flush: %v", needs, err, flushErr)

	d := h.open(t)
	must(t, d.Close())
	f = open(d)
	_, err = f.NeedsFlush()
	for _, err := range []error{err, f.FlushRemoteWrites()} {
		if !errors.Is(err, errdefs.ErrClosed) {
			t.Errorf("closed device: %v", err)
		}
	}
}
