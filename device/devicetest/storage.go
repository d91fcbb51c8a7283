package devicetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
)

// fileBytes is the length of the test files. It is unaligned.
const fileBytes = 1<<20 + 4096 + 777

// storageOpener returns the device as a device.StorageOpener.
func (h *harness) storageOpener(t *testing.T) device.StorageOpener {
	t.Helper()
	o, ok := h.dev.(device.StorageOpener)
	if !ok {
		testkit.Skip(t, "cufile", "this device knows nothing of files")
	}
	return o
}

// storage opens the device's storage until the end of the test. Call it before creating resources
// that must be released earlier.
func (h *harness) storage(t *testing.T) device.Storage {
	t.Helper()
	st, err := h.storageOpener(t).OpenStorage(device.StorageOptions{})
	if errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(t, "cufile", err.Error())
	}
	must(t, err)
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Errorf("close storage: %v", err)
		}
	})
	return st
}

// tempFile creates a file of random bytes and returns it with its bytes. It opens the file with
// O_DIRECT if the file system supports that.
func (h *harness) tempFile(t *testing.T) (*os.File, []byte) {
	t.Helper()
	b := make([]byte, fileBytes)
	h.random(b)
	name := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(name, b, 0o600))
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_DIRECT, 0)
	if errors.Is(err, unix.EINVAL) {
		f, err = os.OpenFile(name, os.O_RDWR, 0)
	}
	must(t, err)
	t.Cleanup(func() { must(t, f.Close()) })
	return f, b
}

// contents returns the bytes of a file.
func contents(t *testing.T, f *os.File) []byte {
	t.Helper()
	b, err := os.ReadFile(f.Name())
	must(t, err)
	return b
}

// register registers a file until the end of the test.
func register(t *testing.T, st device.Storage, f *os.File) device.StorageFile {
	t.Helper()
	sf, err := st.Register(int(f.Fd()))
	if errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(t, "cufile", err.Error())
	}
	must(t, err)
	t.Cleanup(func() { must(t, closeFile(t, sf)) })
	return sf
}

func closeFile(t *testing.T, sf device.StorageFile) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	return sf.Close(ctx)
}

// enqueuer registers a file for transfers on queues.
func enqueuer(t *testing.T, st device.Storage, f *os.File) device.StorageEnqueuer {
	t.Helper()
	e, ok := register(t, st, f).(device.StorageEnqueuer)
	if !ok {
		testkit.Skip(t, "cufile-async", "the library has no asynchronous transfers")
	}
	return e
}

// ended waits for a transfer and closes it.
func ended(t *testing.T, x device.Transfer) (int64, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	defer x.Close()
	n, err := x.Wait(ctx)
	if second, done, errAgain := x.Done(); !done || second != n || (errAgain == nil) != (err == nil) {
		t.Errorf("a transfer that moved %d bytes (%v) then returns %d, %v, %v", n, err, second, done, errAgain)
	}
	return n, err
}

// mover reads and writes by calls, or on a queue.
type mover struct {
	name        string
	read, write func(e mem.Extent, off int64) (int64, error)
}

// movers returns the movers that the file supports.
func movers(t *testing.T, q device.Queue, sf device.StorageFile) []mover {
	t.Helper()
	m := []mover{{"call", sf.Read, sf.Write}}
	e, ok := sf.(device.StorageEnqueuer)
	if !ok {
		return m
	}
	by := func(enqueue func(device.Queue, mem.Extent, int64) (device.Transfer, error)) func(mem.Extent, int64) (int64, error) {
		return func(x mem.Extent, off int64) (int64, error) {
			tr, err := enqueue(q, x, off)
			if err != nil {
				return 0, err
			}
			return ended(t, tr)
		}
	}
	return append(m, mover{"queue", by(e.EnqueueRead), by(e.EnqueueWrite)})
}

// testStorageMoves reads and writes pieces of all alignments, and checks that the surrounding bytes
// do not change.
func testStorageMoves(t *testing.T, h *harness) {
	st := h.storage(t)
	f, want := h.tempFile(t)
	d, q := h.device(t, 300<<10), h.queue(t)
	sf := register(t, st, f)
	if m := sf.Mode(); m.Reason == "" {
		t.Errorf("mode %+v has no reason", m)
	} else {
		t.Logf("mode: %+v", m)
	}
	for _, m := range movers(t, q, sf) {
		for _, c := range []struct{ at, off, n int64 }{
			{0, 0, 4096},
			{4096, 8192, 64 << 10},
			{0, 4096, 0},
			{0, 1, 4096},
			{512, 0, 4096},
			{1, 4096, 8192},
			{4096, 4096, 4095},
			{3, 5, 7},
			{777, 4095, 200<<10 + 1},
		} {
			must(t, q.Fill(mem.All(d), guardByte))
			sync(t, q)
			n, err := m.read(extent(d, c.at, c.n), c.off)
			if err != nil || n != c.n {
				t.Errorf("%s: read %d bytes at %d to %d: %d, %v", m.name, c.n, c.off, c.at, n, err)
				continue
			}
			expect := bytes.Repeat([]byte{guardByte}, int(d.Len()))
			copy(expect[c.at:], want[c.off:c.off+c.n])
			diff(t, m.name+": memory after a read", h.get(t, q, d, d.Len()), expect)

			fresh := make([]byte, d.Len())
			h.random(fresh)
			h.put(t, q, d, fresh)
			n, err = m.write(extent(d, c.at, c.n), c.off)
			if err != nil || n != c.n {
				t.Errorf("%s: write %d bytes at %d from %d: %d, %v", m.name, c.n, c.off, c.at, n, err)
				continue
			}
			copy(want[c.off:], fresh[c.at:c.at+c.n])
			diff(t, m.name+": the file after a write", contents(t, f), want)
		}
	}
}

// testStorageShort reads across and after the end of a file, and writes there.
func testStorageShort(t *testing.T, h *harness) {
	st := h.storage(t)
	f, want := h.tempFile(t)
	d, q := h.device(t, 16<<10), h.queue(t)
	sf := register(t, st, f)
	for _, m := range movers(t, q, sf) {
		for _, off := range []int64{fileBytes - 1000, fileBytes - 777, fileBytes, fileBytes + 5000} {
			must(t, q.Fill(mem.All(d), guardByte))
			sync(t, q)
			left := max(fileBytes-off, 0)
			n, err := m.read(extent(d, 0, 8192), off)
			if err != nil || n != left {
				t.Errorf("%s: read at %d of %d bytes: %d, %v, want %d", m.name, off, fileBytes, n, err, left)
				continue
			}
			diff(t, m.name+": rest of the file", h.get(t, q, d, left+1)[:left], want[fileBytes-left:])
		}
	}
	for _, m := range movers(t, q, sf) {
		tail := make([]byte, 5000)
		h.random(tail)
		h.put(t, q, d, tail)
		n, err := m.write(extent(d, 0, 5000), int64(len(want)))
		if err != nil || n != 5000 {
			t.Errorf("%s: write behind the end: %d, %v", m.name, n, err)
		}
		want = append(want, tail...)
		diff(t, m.name+": the file grew by", contents(t, f), want)
	}
}

// testStorageRefuses checks that a refused call does not affect other calls.
func testStorageRefuses(t *testing.T, h *harness) {
	st := h.storage(t)
	f, _ := h.tempFile(t)
	d, p, q := h.device(t, 4096), h.pinned(t, 4096), h.queue(t)
	sf := register(t, st, f)
	dir, err := os.Open(t.TempDir())
	must(t, err)
	defer func() { must(t, dir.Close()) }()
	for name, fd := range map[string]int{"a directory": int(dir.Fd()), "no file": 1 << 20, "less than no file": -1} {
		if x, err := st.Register(fd); err == nil {
			t.Errorf("%s was registered", name)
			must(t, closeFile(t, x))
		}
	}
	for _, m := range movers(t, q, sf) {
		for name, bad := range map[string]struct {
			e   mem.Extent
			off int64
		}{
			"host memory":    {mem.All(p), 0},
			"no region":      {mem.Extent{Len: 8}, 0},
			"past the end":   {extent(d, 4000, 200), 0},
			"negative bytes": {extent(d, 0, -1), 0},
			"before byte 0":  {mem.All(d), -1},
		} {
			if _, err := m.read(bad.e, bad.off); !errors.Is(err, errdefs.ErrInvalid) {
				t.Errorf("%s: read, %s: %v", m.name, name, err)
			}
			if _, err := m.write(bad.e, bad.off); !errors.Is(err, errdefs.ErrInvalid) {
				t.Errorf("%s: write, %s: %v", m.name, name, err)
			}
		}
		if n, err := m.read(mem.All(d), 0); n != 4096 || err != nil {
			t.Errorf("%s: a read after all that: %d, %v", m.name, n, err)
		}
	}

	// The file is open read-only, so its write must fail without other effects.
	ro, err := os.Open(f.Name())
	must(t, err)
	defer func() { must(t, ro.Close()) }()
	before := contents(t, f)
	rf, err := st.Register(int(ro.Fd()))
	if err != nil {
		t.Logf("a file opened for reading is refused: %v", err)
		return
	}
	for _, m := range movers(t, q, rf) {
		if n, err := m.write(mem.All(d), 0); err == nil {
			t.Errorf("%s: %d bytes were written to a file that was opened for reading", m.name, n)
		}
		if n, err := m.read(mem.All(d), 0); n != 4096 || err != nil {
			t.Errorf("%s: read of a file opened for reading: %d, %v", m.name, n, err)
		}
	}
	must(t, closeFile(t, rf))
	diff(t, "the file that was opened for reading", contents(t, f), before)
	sync(t, q) // the queue is not broken
}

// testStorageLeftOpen checks that Close reports open files and buffers.
func testStorageLeftOpen(t *testing.T, h *harness) {
	o := h.storageOpener(t)
	st := h.storage(t)
	if second, err := o.OpenStorage(device.StorageOptions{}); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("open the storage a second time: %v", err)
		if err == nil {
			must(t, second.Close())
		}
	}
	if _, err := o.OpenStorage(device.StorageOptions{Transfers: -1}); err == nil {
		t.Error("open for less than no transfers")
	}
	f, want := h.tempFile(t)
	d, q := h.device(t, 4096), h.queue(t)
	left := register(t, st, f)
	if err := st.Close(); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("close a storage with an open file: %v", err)
	}
	if _, err := left.Read(mem.All(d), 0); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("read of a file that was left open: %v", err)
	}
	st = h.storage(t) // it can be opened again
	sf := register(t, st, f)
	if n, err := sf.Read(mem.All(d), 0); n != 4096 || err != nil {
		t.Errorf("read after the storage was opened again: %d, %v", n, err)
	}
	diff(t, "bytes read", h.get(t, q, d, 4096), want[:4096])
}

// testStorageBuffers uses registered and unregistered memory together.
func testStorageBuffers(t *testing.T, h *harness) {
	st := h.storage(t)
	f, want := h.tempFile(t)
	d, q := h.device(t, 256<<10), h.queue(t)
	sf := register(t, st, f)
	if err := st.RegisterBuffer(d); err != nil {
		testkit.Skip(t, "cufile-buffers", err.Error())
	}
	if err := st.RegisterBuffer(d); !errors.Is(err, errdefs.ErrExists) {
		t.Errorf("register a buffer twice: %v", err)
	}
	for _, m := range movers(t, q, sf) {
		for _, at := range []int64{0, 4096, 100 << 10, 777} {
			if n, err := m.read(extent(d, at, 8192), 4096); n != 8192 || err != nil {
				t.Fatalf("%s: read to byte %d of a buffer: %d, %v", m.name, at, n, err)
			}
			diff(t, m.name+": bytes read", h.get(t, q, d, at+8192)[at:], want[4096:4096+8192])
		}
	}
	must(t, st.UnregisterBuffer(d))
	if err := st.UnregisterBuffer(d); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("unregister a buffer twice: %v", err)
	}
	for _, r := range []*mem.Region{nil, h.pinned(t, 4096)} {
		if err := st.RegisterBuffer(r); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("register %v: %v", r, err)
		}
	}
	if n, err := sf.Read(mem.All(d), 0); n != d.Len() || err != nil {
		t.Errorf("read after a buffer was let go of: %d, %v", n, err)
	}
}

// testStorageManyFiles registers one file several times, and other files, and uses all of them
// after the path was removed.
func testStorageManyFiles(t *testing.T, h *harness) {
	st := h.storage(t)
	f, want := h.tempFile(t)
	d, q := h.device(t, 4096), h.queue(t)
	var files []device.StorageFile
	for range 3 {
		second, err := os.OpenFile(f.Name(), os.O_RDWR, 0) // without O_DIRECT
		must(t, err)
		t.Cleanup(func() { must(t, second.Close()) })
		sf := register(t, st, second)
		if m := sf.Mode(); m.Direct || m.Reason == "" {
			t.Errorf("mode of a file opened without O_DIRECT: %+v", m)
		}
		files = append(files, sf)
	}
	must(t, os.Rename(f.Name(), f.Name()+" renamed"))
	must(t, os.Remove(f.Name()+" renamed"))
	for i, sf := range files {
		if n, err := sf.Read(mem.All(d), int64(i)*4096); n != 4096 || err != nil {
			t.Errorf("file %d: %d, %v", i, n, err)
			continue
		}
		diff(t, "a file without a name", h.get(t, q, d, 4096), want[i*4096:(i+1)*4096])
	}
	_, err := f.Seek(0, io.SeekStart) // the caller still owns the descriptors
	must(t, err)
}
