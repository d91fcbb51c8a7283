package cuda

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/storage"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/cufile"
	"github.com/kvlane/kvlane/mem"
)

var _ device.StorageLooker = (*Device)(nil)

// libcufile is the only cuFile driver of the process. All storages of all Drivers share it, and the
// error if it cannot be loaded.
var libcufile = cufile.NewDriver(cufile.Load)

// OpenStorage implements device.StorageOpener with libcufile.
func (d *Device) OpenStorage(o device.StorageOptions) (device.Storage, error) {
	st, err := d.openStorage(o)
	if err != nil {
		return nil, fmt.Errorf("open storage of device %d: %w", d.info.Index, err)
	}
	return st, nil
}

// LookStorage implements device.StorageLooker.
func (d *Device) LookStorage(dir string) device.StorageMode {
	return storage.Look(os.DirFS("/"), dir).StorageMode
}

func (d *Device) openStorage(o device.StorageOptions) (*storage.Storage, error) {
	if err := d.begin(); err != nil {
		return nil, err
	}
	defer d.end()
	d.storing.Lock()
	defer d.storing.Unlock()
	if d.storage != nil {
		return nil, fmt.Errorf("already open: %w", errdefs.ErrBusy)
	}
	drv := &storageDriver{dev: d}
	err := d.inContext(func() (err error) {
		drv.api, err = d.cufile.Open()
		return err
	})
	if err != nil {
		return nil, err
	}
	st, err := drv.open(o)
	if err != nil {
		_ = drv.Close() // only the first failure is returned
		return nil, err
	}
	d.storage = st
	return st, nil
}

func (s *storageDriver) open(o device.StorageOptions) (*storage.Storage, error) {
	var r cufile.Result
	err := s.dev.inContext(func() error {
		s.props, r = s.api.DriverGetProperties()
		return r.Err("cuFileDriverGetProperties", "")
	})
	if err != nil {
		return nil, err
	}
	if s.api.GetParameterBool != nil {
		on, r := s.api.GetParameterBool(cufile.ParamForceCompat)
		s.forced = on && r.Status == cufile.Success
	}
	d := s.dev
	return storage.New(d, s, o, func() {
		d.storing.Lock()
		defer d.storing.Unlock()
		d.storage = nil
	})
}

// abandonStorage closes the storage, if it is still open, before the context ends.
func (d *Device) abandonStorage() error {
	d.storing.Lock()
	st := d.storage
	d.storing.Unlock()
	if st == nil {
		return nil
	}
	return st.Abandon()
}

// inContext calls f with the device's context current on the calling thread. f may block: only the
// device's Close waits for it.
func (d *Device) inContext(f func() error) error {
	mode, err := d.pushContextRelaxed()
	if err != nil {
		return err
	}
	defer d.popContextRelaxed(mode)
	return f()
}

// storageDriver is libcufile for one device.
type storageDriver struct {
	dev    *Device
	api    *cufile.API
	props  cufile.Properties
	forced bool // the configuration requests the compatibility mode
}

// use calls f in the device's context. It fails if the device is closed or broken.
func (s *storageDriver) use(f func() error) error {
	if err := s.dev.begin(); err != nil {
		return err
	}
	defer s.dev.end()
	if err := s.dev.broken(); err != nil {
		return err
	}
	return s.dev.inContext(f)
}

// Register implements storage.Driver.
func (s *storageDriver) Register(fd int) (storage.File, error) {
	facts, err := lookAt(fd)
	if err != nil {
		return nil, err
	}
	f := &cuFile{s: s, fd: fd, mode: s.modeOf(facts)}
	err = s.use(func() error {
		var r cufile.Result
		f.handle, r = s.api.HandleRegister(fd)
		return r.Err("cuFileHandleRegister", "fd=%d, file system=%s, device=%s", fd, facts.fsType, facts.number)
	})
	if err != nil {
		return nil, err
	}
	if s.api.ReadAsync == nil || s.api.WriteAsync == nil {
		return f, nil
	}
	return &cuFileAsync{f}, nil
}

// RegisterBuffer implements storage.Driver.
func (s *storageDriver) RegisterBuffer(r *mem.Region) error {
	return s.use(func() error {
		return s.api.BufRegister(uint64(r.Dev()), uint64(r.Len()), 0).Err("cuFileBufRegister", "address=%#x, bytes=%d", r.Dev(), r.Len())
	})
}

// UnregisterBuffer implements storage.Driver. It also works on a closing device.
func (s *storageDriver) UnregisterBuffer(r *mem.Region) error {
	return s.dev.inContext(func() error {
		return s.api.BufDeregister(uint64(r.Dev())).Err("cuFileBufDeregister", "address=%#x", r.Dev())
	})
}

// Close implements storage.Driver.
func (s *storageDriver) Close() error { return s.dev.inContext(s.dev.cufile.Close) }

// cuFile is a registered file.
type cuFile struct {
	s      *storageDriver
	fd     int
	handle cufile.Handle
	mode   device.StorageMode
}

// Mode implements storage.File.
func (f *cuFile) Mode() device.StorageMode { return f.mode }

// Move implements storage.File. It passes the start of the region, by which the library identifies
// registered buffers.
func (f *cuFile) Move(d storage.Direction, e mem.Extent, off int64) (n int64, err error) {
	call, move := "cuFileRead", f.s.api.Read
	if d == storage.Write {
		call, move = "cuFileWrite", f.s.api.Write
	}
	err = f.s.use(func() error {
		moved, errno := move(f.handle, uint64(e.Region.Dev()), uint64(e.Len), off, e.Off)
		n, err = cufile.Moved(moved, errno, call, "fd=%d, address=%#x, bytes=%d, offset=%d", f.fd, e.Dev(), e.Len, off)
		return err
	})
	return n, err
}

// Deregister implements storage.File. It also works on a closing device.
func (f *cuFile) Deregister() {
	if f.s.dev.inContext(func() error { f.s.api.HandleDeregister(f.handle); return nil }) != nil {
		return // the context is lost, and the library's handle with it
	}
}

// cuFileAsync is a file of a library that supports asynchronous transfers.
type cuFileAsync struct{ *cuFile }

var _ storage.Enqueuer = (*cuFileAsync)(nil)

// Enqueue implements storage.Enqueuer.
func (f *cuFileAsync) Enqueue(dq device.Queue, d storage.Direction, e mem.Extent, w storage.Words) error {
	q, ok := dq.(interface{ native() *queue })
	if !ok || q.native().dev != f.s.dev {
		return fmt.Errorf("%T is not a queue of device %d: %w", dq, f.s.dev.info.Index, errdefs.ErrInvalid)
	}
	if err := q.native().usable(); err != nil {
		return err
	}
	call, enqueue := "cuFileReadAsync", f.s.api.ReadAsync
	if d == storage.Write {
		call, enqueue = "cuFileWriteAsync", f.s.api.WriteAsync
	}
	words := cufile.Words{
		Size: uintptr(w.CPU(storage.WordSize)), FileOffset: uintptr(w.CPU(storage.WordFileOffset)),
		BufferOffset: uintptr(w.CPU(storage.WordBufferOffset)), Moved: uintptr(w.CPU(storage.WordMoved)),
	}
	return f.s.use(func() error {
		return enqueue(f.handle, uint64(e.Dev()), words, uintptr(q.native().stream)).Err(call, "fd=%d, address=%#x, bytes=%d, offset=%d",
			f.fd, e.Dev(), w.Load(storage.WordSize), w.Load(storage.WordFileOffset))
	})
}

// Outcome implements storage.Enqueuer.
func (f *cuFileAsync) Outcome(d storage.Direction, e mem.Extent, w storage.Words) (int64, error) {
	call := "cuFileReadAsync"
	if d == storage.Write {
		call = "cuFileWriteAsync"
	}
	return cufile.Moved(w.Load(storage.WordMoved), 0, call, "fd=%d, address=%#x", f.fd, e.Dev())
}

// native returns the queue. The types that able returns inherit it.
func (q *queue) native() *queue { return q }

// fileFacts are the properties of a file that determine how its bytes are moved.
type fileFacts struct {
	fsType string // name as used by mount; a number if unknown
	number string // number of the device below the file system: "259:0"
	block  string // path of that device in sysfs, or ""
	direct bool   // opened with O_DIRECT
	nvfs   bool   // the kernel module nvidia-fs is loaded
}

// lookAt returns the properties of the file behind fd.
func lookAt(fd int) (fileFacts, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fileFacts{}, fmt.Errorf("fstat(fd=%d): %w", fd, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fileFacts{}, fmt.Errorf("descriptor %d is not of a regular file: %w", fd, errdefs.ErrInvalid)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return fileFacts{}, fmt.Errorf("fstatfs(fd=%d): %w", fd, err)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return fileFacts{}, fmt.Errorf("fcntl(fd=%d): %w", fd, err)
	}
	f := fileFacts{
		fsType: fsTypes[fs.Type], direct: flags&unix.O_DIRECT != 0,
		number: strconv.Itoa(int(unix.Major(st.Dev))) + ":" + strconv.Itoa(int(unix.Minor(st.Dev))),
	}
	if f.fsType == "" {
		f.fsType = fmt.Sprintf("%#x", fs.Type)
	}
	if path, err := os.Readlink("/sys/dev/block/" + f.number); err == nil {
		f.block = strings.TrimLeft(path, "./")
	}
	_, err = os.Stat("/proc/driver/nvidia-fs")
	f.nvfs = err == nil
	return f, nil
}
