package cuda

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/cuda"
	"github.com/kvlane/kvlane/internal/sys/cufile"
	"github.com/kvlane/kvlane/mem"
)

// library is a fake libcufile over the fake driver. It checks contexts and records calls.
type library struct {
	*fake
	dev    *Device
	queued []func()
	moved  int64 // result of transfers; 0: the requested number
	errno  syscall.Errno
	status cufile.Status // status of the next failure
	last   [5]uint64     // arguments of the last Read or Write
	words  cufile.Words  // words of the last asynchronous transfer
}

// withLibrary returns a device with that library.
func withLibrary(t *testing.T, change func(*cufile.API)) *library {
	t.Helper()
	f := newFake(t)
	l := &library{fake: f, dev: concrete(t, f.open())}
	api := l.api()
	if change != nil {
		change(api)
	}
	l.dev.cufile = cufile.NewDriver(func() (*cufile.API, error) { return api, nil })
	return l
}

func (l *library) answer(name string) cufile.Result {
	r := cufile.Result{Status: l.status}
	if l.enter(name, contextRelaxed) != cuda.Success {
		r = cufile.Result{Status: cufile.CUDADriverError, CUDA: 719}
	}
	return r
}

func (l *library) api() *cufile.API {
	move := func(name string) func(cufile.Handle, uint64, uint64, int64, int64) (int64, syscall.Errno) {
		return func(h cufile.Handle, base, bytes uint64, fileOff, bufOff int64) (int64, syscall.Errno) {
			l.enter(name, contextRelaxed)
			l.last = [5]uint64{uint64(h), base, bytes, uint64(fileOff), uint64(bufOff)}
			if l.moved != 0 {
				return l.moved, l.errno
			}
			return int64(bytes), 0
		}
	}
	async := func(name string) func(cufile.Handle, uint64, cufile.Words, uintptr) cufile.Result {
		return func(_ cufile.Handle, base uint64, w cufile.Words, stream uintptr) cufile.Result {
			r := l.answer(name)
			l.words = w
			l.last = [5]uint64{uint64(stream), base}
			l.queued = append(l.queued, func() {
				n := l.word(w.Size)
				if l.moved != 0 {
					n = l.moved
				}
				l.store(w.Moved, n)
			})
			return r
		}
	}
	return &cufile.API{
		DriverOpen:  func() cufile.Result { return l.answer("cuFileDriverOpen") },
		DriverClose: func() cufile.Result { return l.answer("cuFileDriverClose") },
		DriverGetProperties: func() (cufile.Properties, cufile.Result) {
			return cufile.Properties{}, l.answer("cuFileDriverGetProperties")
		},
		HandleRegister: func(int) (cufile.Handle, cufile.Result) {
			r := l.answer("cuFileHandleRegister")
			if r.Status != cufile.Success {
				return 0, r
			}
			h, _ := l.made("file", cuda.Success)
			return cufile.Handle(h), r
		},
		HandleDeregister: func(h cufile.Handle) {
			l.gone("file", uint64(h), l.enter("cuFileHandleDeregister", contextRelaxed))
		},
		BufRegister:   func(uint64, uint64, int) cufile.Result { return l.answer("cuFileBufRegister") },
		BufDeregister: func(uint64) cufile.Result { return l.answer("cuFileBufDeregister") },
		Read:          move("cuFileRead"), Write: move("cuFileWrite"),
		ReadAsync: async("cuFileReadAsync"), WriteAsync: async("cuFileWriteAsync"),
	}
}

// at returns the word of pinned memory at that address.
func (l *library) at(addr uintptr) []byte {
	l.dev.mu.Lock()
	defer l.dev.mu.Unlock()
	for r := range l.dev.regions {
		if off := mem.CPUAddr(addr) - r.CPU(); r.CPU() != 0 && mem.CPUAddr(addr) >= r.CPU() && int64(off) < r.Len() {
			return r.Bytes()[off:][:8]
		}
	}
	l.tb.Errorf("the word at %#x is in no pinned memory of the device", addr)
	return make([]byte, 8)
}

func (l *library) word(addr uintptr) int64 { return int64(binary.LittleEndian.Uint64(l.at(addr))) }

func (l *library) store(addr uintptr, v int64) { binary.LittleEndian.PutUint64(l.at(addr), uint64(v)) }

func (l *library) run() {
	for _, f := range l.queued {
		f()
	}
	l.queued = nil
}

func (l *library) storage(t *testing.T) device.Storage {
	t.Helper()
	st, err := l.dev.OpenStorage(device.StorageOptions{})
	must(t, err)
	return st
}

func (l *library) file(t *testing.T, st device.Storage) (device.StorageFile, int) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "file"), os.O_RDWR|os.O_CREATE, 0o600)
	must(t, err)
	t.Cleanup(func() { must(t, f.Close()) })
	sf, err := st.Register(int(f.Fd()))
	must(t, err)
	return sf, int(f.Fd())
}

func (l *library) enqueuer(t *testing.T, st device.Storage) device.StorageEnqueuer {
	t.Helper()
	sf, _ := l.file(t, st)
	e, ok := sf.(device.StorageEnqueuer)
	if !ok {
		t.Fatalf("%T has no asynchronous transfers", sf)
	}
	return e
}

// since returns the calls with the given names that were made, in order.
func (l *library) since(names ...string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var got []string
	for _, c := range l.calls {
		if slices.Contains(names, c) {
			got = append(got, c)
		}
	}
	return got
}

func TestStorageGivesBackInOrder(t *testing.T) {
	f := newFake(t)
	l := &library{fake: f, dev: concrete(t, f.openOnly())}
	api := l.api()
	l.dev.cufile = cufile.NewDriver(func() (*cufile.API, error) { return api, nil })
	st := l.storage(t)
	sf, _ := l.file(t, st)
	if err := l.dev.Close(); !errors.Is(err, errdefs.ErrBusy) || !strings.Contains(err.Error(), "storage of device 0 was still open") {
		t.Errorf("close the device: %v", err)
	}
	want := []string{"cuFileDriverOpen", "cuFileHandleRegister", "cuFileHandleDeregister", "cuFileDriverClose", "cuDevicePrimaryCtxRelease_v2"}
	if got := l.since(want...); !slices.Equal(got, want) {
		t.Errorf("called %q, want %q", got, want)
	}
	must(t, sf.Close(t.Context()))
	must(t, st.Close())
	if left := f.left(); left != nil {
		t.Errorf("objects left in the driver: %v", left)
	}
	f.clean()
}

func TestStorageTransfersAreOfRegions(t *testing.T) {
	l := withLibrary(t, nil)
	st := l.storage(t)
	sf, _ := l.file(t, st)
	r, err := l.dev.Alloc(1<<20, device.AllocOptions{})
	must(t, err)
	if n, err := sf.Read(mem.Extent{Region: r, Off: 100, Len: 50}, 7); n != 50 || err != nil {
		t.Errorf("read: %d, %v", n, err)
	}
	// The library identifies registered buffers by their start.
	if want := [5]uint64{l.last[0], uint64(r.Dev()), 50, 7, 100}; l.last != want {
		t.Errorf("the library got %d, want %d", l.last, want)
	}
	l.moved = 49
	if n, err := sf.Write(mem.Extent{Region: r, Off: 100, Len: 50}, 7); n != 49 || err != nil {
		t.Errorf("short write: %d, %v", n, err)
	}
	for _, c := range []struct {
		moved int64
		errno syscall.Errno
		want  error
	}{{-1, unix.ENOSPC, unix.ENOSPC}, {-1, 0, unix.EIO}, {-5, 0, unix.EIO}, {-5022, 0, errdefs.ErrInvalid}, {-5008, 0, errdefs.ErrNotSupported}, {51, 0, errdefs.ErrBroken}} {
		l.moved, l.errno = c.moved, c.errno
		if n, err := sf.Read(mem.Extent{Region: r, Len: 50}, 0); !errors.Is(err, c.want) || n != 0 {
			t.Errorf("the library answered %d, %v: %d, %v", c.moved, c.errno, n, err)
		}
	}
	must(t, sf.Close(t.Context()))
	must(t, st.Close())
	must(t, l.dev.Free(r))
}

func TestStorageRegistrationFailsAlone(t *testing.T) {
	l := withLibrary(t, nil)
	st := l.storage(t)
	first, fd := l.file(t, st)
	l.status = cufile.HandleNotRegistered
	_, err := st.Register(fd)
	var e *device.Error
	if !errors.As(err, &e) || e.Code != 5027 || e.Call != "cuFileHandleRegister" || !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("register: %v", err)
	}
	l.status = cufile.Success
	second, err := st.Register(fd)
	must(t, err)
	for _, f := range []device.StorageFile{first, second} {
		must(t, f.Close(t.Context()))
	}
	must(t, st.Close())
}

func TestStorageWordsBelongToTransfers(t *testing.T) {
	l := withLibrary(t, nil)
	st := l.storage(t)
	sf := l.enqueuer(t, st)
	r, err := l.dev.Alloc(1<<20, device.AllocOptions{})
	must(t, err)
	q, err := l.dev.OpenQueue(device.QueueOptions{})
	must(t, err)
	l.set(func() { l.state = cuda.ErrorNotReady })
	seen := map[uintptr]bool{}
	for i := range int64(100) {
		x, err := sf.EnqueueRead(q, mem.Extent{Region: r, Off: i, Len: 10 + i}, 1000+i)
		must(t, err)
		w := l.words
		if w.Moved == 0 || seen[w.Moved] {
			t.Fatalf("transfer %d has words that another has", i)
		}
		seen[w.Moved] = true
		if l.word(w.Size) != 10+i || l.word(w.FileOffset) != 1000+i || l.word(w.BufferOffset) != 0 || l.last[1] != uint64(r.Dev())+uint64(i) {
			t.Errorf("transfer %d: words %d, %d, %d at %#x", i, l.word(w.Size), l.word(w.FileOffset), l.word(w.BufferOffset), l.last[1])
		}
		if moved, done, err := x.Done(); moved != 0 || done || err != nil {
			t.Errorf("transfer %d before its turn: %d, %v, %v", i, moved, done, err)
		}
		x.Close()
	}
	l.run()
	l.set(func() { l.state = cuda.Success })
	for i, c := range []struct {
		moved, want int64
		err         error
	}{{0, 64, nil}, {63, 63, nil}, {-1, 0, unix.EIO}, {-5, 0, unix.EIO}, {-5022, 0, errdefs.ErrInvalid}, {65, 0, errdefs.ErrBroken}} {
		l.moved = c.moved
		x, err := sf.EnqueueWrite(q, mem.Extent{Region: r, Len: 64}, 0)
		must(t, err)
		if !seen[l.words.Moved] {
			t.Errorf("transfer %d has new words, where all of before are free", i)
		}
		l.run()
		if moved, err := x.Wait(t.Context()); moved != c.want || !errors.Is(err, c.err) {
			t.Errorf("the library returned %d: %d, %v", c.moved, moved, err)
		}
		x.Close()
	}
	// The library reports no result.
	x, err := sf.EnqueueRead(q, mem.Extent{Region: r, Len: 64}, 0)
	must(t, err)
	if _, err := x.Wait(t.Context()); !errors.Is(err, errdefs.ErrBroken) {
		t.Errorf("a transfer without a result: %v", err)
	}
	x.Close()
	l.status = cufile.AsyncNotSupported
	if _, err := sf.EnqueueRead(q, mem.Extent{Region: r, Len: 64}, 0); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("a transfer that the library refuses: %v", err)
	}
	l.status = cufile.Success
	must(t, sf.Close(t.Context()))
	must(t, st.Close())
	must(t, q.Close(t.Context()))
	must(t, l.dev.Free(r))
}

// Without an event, the end of a transfer is unknown. Its error reports that, and neither its words
// nor its file are released.
func TestTransferWithoutEventIsNeverOver(t *testing.T) {
	f := newFake(t)
	l := &library{fake: f, dev: concrete(t, f.openOnly())}
	api := l.api()
	l.dev.cufile = cufile.NewDriver(func() (*cufile.API, error) { return api, nil })
	st := l.storage(t)
	sf := l.enqueuer(t, st)
	r, err := l.dev.Alloc(1<<20, device.AllocOptions{})
	must(t, err)
	q, err := l.dev.OpenQueue(device.QueueOptions{Events: 1})
	must(t, err)
	api.ReadAsync = func(cufile.Handle, uint64, cufile.Words, uintptr) cufile.Result {
		l.failNth(1, cuda.ErrorInvalidValue) // after the context was pushed
		return cufile.Result{}
	}
	x, err := sf.EnqueueRead(q, mem.All(r), 0)
	must(t, err)
	if _, done, err := x.Done(); done || !errors.Is(err, errdefs.ErrBroken) {
		t.Errorf("done: %v, %v (%s failed)", done, err, f.failedCall())
	}
	x.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := sf.Close(ctx); !errors.Is(err, errdefs.ErrBroken) {
		t.Errorf("close the file: %v", err)
	}
	if err := st.Close(); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("close the storage: %v", err)
	}
	must(t, q.Close(t.Context())) // after that the transfer is finished
	if err := l.dev.Close(); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("close the device: %v", err)
	}
	if left := f.left(); left != nil {
		t.Errorf("objects left in the driver: %v", left)
	}
}

func TestOlderLibraryHasNoAsynchronousTransfers(t *testing.T) {
	l := withLibrary(t, func(a *cufile.API) { a.WriteAsync = nil })
	st := l.storage(t)
	sf, _ := l.file(t, st)
	if _, ok := sf.(device.StorageEnqueuer); ok {
		t.Error("a file has transfers that its library lacks")
	}
	must(t, sf.Close(t.Context()))
	must(t, st.Close())
}

func TestDefectSecondStorageOpenForgetsTheFailure(t *testing.T) {
	l := withLibrary(t, nil)
	l.status = cufile.PlatformNotSupported
	_, first := l.dev.OpenStorage(device.StorageOptions{})
	l.status = cufile.Success
	_, again := l.dev.OpenStorage(device.StorageOptions{})
	if first == nil || again == nil || first.Error() != again.Error() || !errors.Is(again, errdefs.ErrNotSupported) {
		t.Errorf("the first open returned %v, the second %v", first, again)
	}
	if n := l.count("cuFileDriverOpen"); n != 1 {
		t.Errorf("the driver was opened %d times", n)
	}
}

func TestStorageModeHasAReason(t *testing.T) {
	nvme := fileFacts{fsType: "ext4", block: "devices/pci0000:00/0000:00:04.0/nvme/nvme0/nvme0n1/nvme0n1p1", direct: true, nvfs: true}
	has := func(bits ...int) cufile.Properties {
		p := cufile.Properties{Major: 2, Minor: 17}
		for _, b := range bits {
			p.Status |= 1 << b
		}
		return p
	}
	with := func(change func(*fileFacts)) fileFacts {
		f := nvme
		change(&f)
		return f
	}
	for name, c := range map[string]struct {
		facts  fileFacts
		props  cufile.Properties
		forced bool
		direct bool
		reason string
	}{
		"NVMe":          {nvme, has(cufile.StatusNVMe), false, true, "nvidia_fs 2.17, ext4 on nvme0n1"},
		"NVMe not":      {nvme, has(), false, false, "nvidia_fs cannot reach the disk nvme0n1"},
		"forced":        {nvme, has(cufile.StatusNVMe), true, false, "force_compat_mode"},
		"buffered":      {with(func(f *fileFacts) { f.direct = false }), has(cufile.StatusNVMe), false, false, "without O_DIRECT"},
		"no module":     {with(func(f *fileFacts) { f.nvfs = false }), cufile.Properties{}, false, false, "nvidia_fs is not loaded"},
		"P2PDMA":        {with(func(f *fileFacts) { f.nvfs = false }), cufile.Properties{Status: 1 << cufile.StatusNVMeP2P}, false, true, "peer-to-peer"},
		"virtio":        {with(func(f *fileFacts) { f.block = "devices/pci0000:00/0000:00:02.0/virtio1/block/vda" }), has(cufile.StatusNVMe), false, false, "the disk vda"},
		"P2PDMA virtio": {with(func(f *fileFacts) { f.nvfs, f.block = false, "devices/virtio1/block/vda" }), cufile.Properties{Status: 1 << cufile.StatusNVMeP2P}, false, false, "nvidia_fs is not loaded"},
		"SCSI":          {with(func(f *fileFacts) { f.block = "devices/x/block/sda/sda2" }), has(cufile.StatusSCSI), false, true, "on sda"},
		"no disk":       {with(func(f *fileFacts) { f.block = "" }), has(cufile.StatusNVMe), false, false, "unknown disk"},
		"tmpfs":         {with(func(f *fileFacts) { f.fsType = "tmpfs" }), has(cufile.StatusNVMe), false, false, "does not support the file system tmpfs"},
		"NFS":           {with(func(f *fileFacts) { f.fsType = "nfs" }), has(cufile.StatusNFS), false, true, "supports nfs"},
		"NFS not":       {with(func(f *fileFacts) { f.fsType = "nfs" }), has(cufile.StatusNVMe), false, false, "no support for nfs"},
	} {
		s := &storageDriver{props: c.props, forced: c.forced}
		m := s.modeOf(c.facts)
		if m.Direct != c.direct || !strings.Contains(m.Reason, c.reason) || strings.Contains(m.Reason, "compatibility") == c.direct {
			t.Errorf("%s: %+v, want %v with %q", name, m, c.direct, c.reason)
		}
	}
}

func TestLookAtSeesTheFile(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	must(t, err)
	defer f.Close()
	facts, err := lookAt(int(f.Fd()))
	if err != nil || facts.fsType == "" || facts.direct || !strings.Contains(facts.number, ":") {
		t.Errorf("%+v, %v", facts, err)
	}
	if _, err := lookAt(-1); !errors.Is(err, unix.EBADF) {
		t.Errorf("no file: %v", err)
	}
	dir, err := os.Open(t.TempDir())
	must(t, err)
	defer dir.Close()
	if _, err := lookAt(int(dir.Fd())); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("a directory: %v", err)
	}
}
