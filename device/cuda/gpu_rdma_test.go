package cuda_test

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
)

// TestGPUExportsDMABuf exports shareable and other memory, keeps a descriptor open after the memory
// is freed, and logs the time of an export.
func TestGPUExportsDMABuf(t *testing.T) {
	f := newFixture(t)
	x, ok := f.dev.(device.DMABufExporter)
	if !ok {
		t.Fatalf("%T does not export memory", f.dev)
	}
	for _, shareable := range []bool{false, true} {
		const n = 64 << 20
		r, err := f.dev.Alloc(n, device.AllocOptions{Shareable: shareable})
		f.must(err)
		began := time.Now()
		fd, off, err := x.ExportDMABuf(mem.All(r))
		took := time.Since(began)
		f.must(f.dev.Free(r))
		if errors.Is(err, errdefs.ErrNotSupported) {
			testkit.Skip(t, "cuda-dmabuf", err.Error())
		}
		f.must(err)
		size, err := unix.Seek(fd, 0, unix.SEEK_END)
		if err != nil || size < off+n {
			t.Errorf("dma-buf of %d bytes, offset %d: %v", size, off, err)
		}
		f.must(unix.Close(fd))
		if err := unix.Close(fd); !errors.Is(err, unix.EBADF) {
			t.Errorf("the descriptor was closed, and closing it again returns %v", err)
		}
		t.Logf("exported %d bytes in %v, shareable %v", n, took, shareable)
	}
}

// TestGPUFlushesNICWrites queries whether writes of NICs need a flush, and flushes.
func TestGPUFlushesNICWrites(t *testing.T) {
	f := newFixture(t)
	w, ok := f.dev.(device.RemoteWriteFlusher)
	if !ok {
		t.Fatalf("%T does not support flushes", f.dev)
	}
	needs, err := w.NeedsFlush()
	t.Logf("needs a flush: %v, %v", needs, err)
	if errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(t, "cuda-flush", err.Error())
	}
	f.must(err)
	if err := w.FlushRemoteWrites(); err != nil {
		if !needs && errors.Is(err, errdefs.ErrNotSupported) {
			testkit.Skip(t, "cuda-flush", err.Error())
		}
		t.Fatal(err)
	}
	const times = 100
	began := time.Now()
	for range times {
		f.must(w.FlushRemoteWrites())
	}
	t.Logf("%v a flush", time.Since(began)/times)
}
