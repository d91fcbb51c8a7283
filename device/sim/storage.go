package sim

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/storage"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
)

// The names of file operations that Options.Faults counts. The last two are counted when bytes are
// about to be moved, by a call or on a queue, and support all actions. Partial moves half of the
// bytes and returns that number, like a short transfer without an error. These faults fail the
// transfer, not the queue.
const (
	OpStorageOpen    = "storage-open" // Device.OpenStorage
	OpFileRegister   = "file-register"
	OpBufferRegister = "buffer-register"
	OpFileEnqueue    = "file-enqueue" // the call
	OpFileRead       = "file-read"
	OpFileWrite      = "file-write"
)

// StorageModel describes the device's access to files, by reads and writes of the host. The zero
// value is a machine with GPUDirect Storage and no limits.
type StorageModel struct {
	// Missing makes OpenStorage report that there is no library.
	Missing bool
	// NoAsync creates files that do not implement device.StorageEnqueuer, like those of an old
	// library.
	NoAsync bool
	// Compat is the reason why files are in compatibility mode. If it is empty, files opened with
	// O_DIRECT are direct.
	Compat string
	// MaxFiles limits the number of registered files. Zero means no limit.
	MaxFiles int
	// MaxBufferBytes limits the memory registered as buffers. Zero means no limit.
	MaxBufferBytes int64
	// Aligned makes transfers fail if offset, length or address is not a multiple of
	// device.StorageAlign.
	Aligned bool
}

// StorageFigures counts the use of the device's access to files.
type StorageFigures struct {
	Files         int   // currently registered
	Registrations int64 // successful registrations
	Transfers     int64 // transfers that moved bytes, by calls and on queues
	Misaligned    int64 // unaligned transfers, which would be copied through the host
	Bytes         int64
}

// StorageFigures returns the counters since the device was opened. It is safe for concurrent use.
func (d *Device) StorageFigures() StorageFigures {
	d.figures.Lock()
	defer d.figures.Unlock()
	return d.figures.StorageFigures
}

func (d *Device) countFiles(add func(f *StorageFigures)) {
	d.figures.Lock()
	defer d.figures.Unlock()
	add(&d.figures.StorageFigures)
}

var _ device.StorageLooker = (*Device)(nil)

// OpenStorage implements device.StorageOpener.
func (d *Device) OpenStorage(o device.StorageOptions) (device.Storage, error) {
	st, err := d.openStorage(o)
	if err != nil {
		return nil, fmt.Errorf("open storage of simulated device %d: %w", d.o.Index, err)
	}
	return st, nil
}

// LookStorage implements device.StorageLooker.
func (d *Device) LookStorage(string) device.StorageMode {
	return d.storageMode(unix.O_DIRECT)
}

func (d *Device) openStorage(o device.StorageOptions) (*storage.Storage, error) {
	const call = "simFileDriverOpen"
	d.files.Lock()
	defer d.files.Unlock()
	switch {
	case d.isClosed():
		return nil, errClosed(call)
	case d.o.Storage.Missing:
		return nil, fmt.Errorf("libcufile is not simulated: %w", errdefs.ErrNotSupported)
	case d.storageFailed != nil:
		return nil, d.storageFailed
	case d.storage != nil:
		return nil, fmt.Errorf("already open: %w", errdefs.ErrBusy)
	}
	if f, hit := d.o.Faults.Hit(OpStorageOpen); hit {
		d.storageFailed = errInjected(call, &f)
		return nil, d.storageFailed
	}
	st, err := storage.New(d, &storageDriver{dev: d}, o, func() {
		d.files.Lock()
		defer d.files.Unlock()
		d.storage = nil
	})
	if err != nil {
		return nil, err
	}
	d.storage = st
	return st, nil
}

// abandonStorage closes the storage if it is still open.
func (d *Device) abandonStorage() error {
	d.files.Lock()
	st := d.storage
	d.files.Unlock()
	if st == nil {
		return nil
	}
	return st.Abandon()
}

// storageDriver simulates the cuFile library.
type storageDriver struct {
	dev *Device

	mu      sync.Mutex
	files   int
	buffers int64
}

// Register reopens the file, so that reads and writes of any alignment use the page cache, and
// transfers can detect a descriptor that its owner has closed or reused.
func (s *storageDriver) Register(fd int) (storage.File, error) {
	const call = "simFileHandleRegister"
	if f, hit := s.dev.o.Faults.Hit(OpFileRegister); hit {
		return nil, errInjected(call, &f)
	}
	args := fmt.Sprintf("fd=%d", fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("%s(%s): %w", call, args, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, native(call, args, 5018, "INVALID_FILE_TYPE", "not a regular file", errdefs.ErrNotSupported)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return nil, fmt.Errorf("%s(%s): %w", call, args, err)
	}
	if st.Nlink == 0 { // like libcufile 1.15, which reopens the file by its name
		return nil, native(call, args, 5031, "GETNEWFD_FAILED", "it has no name", errdefs.ErrNotSupported)
	}
	if flags&(unix.O_NONBLOCK|unix.O_APPEND|unix.O_PATH) != 0 { // like libcufile 1.15
		return nil, native(call, args, 5019, "INVALID_FILE_OPEN_FLAG", fmt.Sprintf("it was opened with flags %#x", flags), errdefs.ErrNotSupported)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if most := s.dev.o.Storage.MaxFiles; most > 0 && s.files >= most {
		return nil, native(call, args, 5030, "INTERNAL_ERROR", fmt.Sprintf("%d files are registered", s.files), errdefs.ErrBusy)
	}
	own, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), flags&unix.O_ACCMODE|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s(%s): %w", call, args, err)
	}
	s.files++
	s.dev.countFiles(func(f *StorageFigures) { f.Files++; f.Registrations++ })
	f := &simFile{s: s, fd: fd, own: own, dev: st.Dev, ino: st.Ino, mode: s.dev.storageMode(flags), failures: make(map[int64]error)}
	if s.dev.o.Storage.NoAsync {
		return syncFile{f}, nil
	}
	return f, nil
}

func (d *Device) storageMode(flags int) device.StorageMode {
	switch compat := d.o.Storage.Compat; {
	case compat != "":
		return device.StorageMode{Reason: compat}
	case flags&unix.O_DIRECT == 0:
		return device.StorageMode{Reason: "the file was opened without O_DIRECT"}
	}
	return device.StorageMode{Direct: true, Reason: "simulated"}
}

// RegisterBuffer implements storage.Driver.
func (s *storageDriver) RegisterBuffer(r *mem.Region) error {
	const call = "simFileBufRegister"
	if f, hit := s.dev.o.Faults.Hit(OpBufferRegister); hit {
		return errInjected(call, &f)
	}
	if err := s.dev.checkExtent(call, mem.All(r)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if most := s.dev.o.Storage.MaxBufferBytes; most > 0 && r.Len() > most-s.buffers {
		return native(call, fmt.Sprintf("bytes=%d", r.Len()), 5036, "GPU_MEMORY_PINNING_FAILED",
			fmt.Sprintf("%d of %d bytes are in use", s.buffers, most), errdefs.ErrNoMemory)
	}
	s.buffers += r.Len()
	return nil
}

// UnregisterBuffer implements storage.Driver. It detects memory that was freed too early.
func (s *storageDriver) UnregisterBuffer(r *mem.Region) error {
	s.mu.Lock()
	s.buffers -= r.Len()
	s.mu.Unlock()
	if err := s.dev.checkExtent("simFileBufDeregister", mem.All(r)); err != nil {
		s.dev.misused(fmt.Errorf("a registered buffer was freed: %w", err))
	}
	return nil
}

// Close implements storage.Driver.
func (s *storageDriver) Close() error { return nil }

// simFile is a registered file.
type simFile struct {
	s        *storageDriver
	fd, own  int
	dev, ino uint64
	mode     device.StorageMode

	mu       sync.Mutex
	failures map[int64]error // errors of failed transfers, by the address of their words
	gone     bool            // deregistered
}

// syncFile is a file without asynchronous transfers.
type syncFile struct{ f *simFile }

func (s syncFile) Mode() device.StorageMode { return s.f.Mode() }
func (s syncFile) Deregister()              { s.f.Deregister() }
func (s syncFile) Move(d storage.Direction, e mem.Extent, off int64) (int64, error) {
	return s.f.Move(d, e, off)
}

// Mode implements storage.File.
func (f *simFile) Mode() device.StorageMode { return f.mode }

// Deregister implements storage.File.
func (f *simFile) Deregister() {
	f.mu.Lock()
	again := f.gone
	f.gone = true
	f.mu.Unlock()
	if again {
		f.s.dev.misused(fmt.Errorf("fd=%d was deregistered twice: %w", f.fd, errdefs.ErrClosed))
		return
	}
	_ = unix.Close(f.own) // this package opened the descriptor and closes it once
	f.s.dev.countFiles(func(f *StorageFigures) { f.Files-- })
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	f.s.files--
}

// Move implements storage.File.
func (f *simFile) Move(d storage.Direction, e mem.Extent, off int64) (int64, error) {
	dev := f.s.dev
	call := fileCall(d)
	if err := dev.checkExtent(call, e); err != nil {
		return 0, err
	}
	ft, hit := dev.o.Faults.Hit(fileOp(d))
	var struck *fault.Fault
	if hit {
		if err := dev.applyFault(fileOp(d), &ft); err != nil {
			return 0, err
		}
		struck = &ft
	}
	x := executor{space: dev.space}
	x.lockMemory()
	defer x.release()
	b, err := x.bytes(call, e.Dev(), uint64(e.Len), &x.lastDst)
	if err != nil {
		return 0, err
	}
	return f.carry(d, e.Dev(), b, off, struck)
}

// admit returns an error for a file that is deregistered, and for an unaligned transfer if the
// model refuses those.
func (f *simFile) admit(d storage.Direction, at mem.DevAddr, n int, off int64) error {
	f.mu.Lock()
	gone := f.gone
	f.mu.Unlock()
	if gone {
		err := native(fileCall(d), fmt.Sprintf("fd=%d", f.fd), 5027, "HANDLE_NOT_REGISTERED", "the file is deregistered", errdefs.ErrClosed)
		f.s.dev.misused(err)
		return err
	}
	misaligned := (uint64(at)|uint64(n)|uint64(off))%device.StorageAlign != 0
	if misaligned && f.s.dev.o.Storage.Aligned {
		return fmt.Errorf("%s(fd=%d, address=%#x, bytes=%d, offset=%d): not aligned: %w", fileCall(d), f.fd, uint64(at), n, off, unix.EINVAL)
	}
	if misaligned {
		f.s.dev.countFiles(func(f *StorageFigures) { f.Misaligned++ })
	}
	return nil
}

// carry moves bytes between the file and b, the device's memory at address at, until the end of the
// file or of b.
func (f *simFile) carry(d storage.Direction, at mem.DevAddr, b []byte, off int64, struck *fault.Fault) (int64, error) {
	if err := f.admit(d, at, len(b), off); err != nil {
		return 0, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil || st.Dev != f.dev || st.Ino != f.ino {
		return 0, fmt.Errorf("%s(fd=%d): the descriptor is no longer that of the registered file: %w", fileCall(d), f.fd, unix.EBADF)
	}
	if struck != nil && struck.Action == fault.Partial {
		b = b[:len(b)/2]
	}
	move := unix.Pread
	if d == storage.Write {
		move = unix.Pwrite
		if struck != nil && struck.Action == fault.Corrupt && len(b) > 0 {
			b = append([]byte(nil), b...)
			damage(b, struck.Rand)
		}
	}
	done := 0
	for done < len(b) {
		n, err := move(f.own, b[done:], off+int64(done))
		if err == unix.EINTR { //nolint:errorlint // a bare errno
			continue
		}
		if err != nil {
			return int64(done), fmt.Errorf("%s(fd=%d, bytes=%d, offset=%d): %w", fileCall(d), f.fd, len(b), off, err)
		}
		if n == 0 {
			break
		}
		done += n
	}
	if d == storage.Read && struck != nil && struck.Action == fault.Corrupt && done > 0 {
		damage(b[:done], struck.Rand)
	}
	f.s.dev.countFiles(func(f *StorageFigures) { f.Transfers++; f.Bytes += int64(done) })
	return int64(done), nil
}

func damage(b []byte, r uint64) { b[(r>>24)%uint64(len(b))] ^= 1 << (r >> 61) }

func fileCall(d storage.Direction) string {
	if d == storage.Write {
		return "simFileWrite"
	}
	return "simFileRead"
}

func fileOp(d storage.Direction) string {
	if d == storage.Write {
		return OpFileWrite
	}
	return OpFileRead
}
