package file

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/mem"
)

// Align is the alignment of offset, length and address of a direct transfer, in bytes.
const Align = device.StorageAlign

// File is an open file that streams move. A region of kind file refers to it. It is safe for
// concurrent use.
type File struct {
	base   dirfs.File
	name   string
	info   dirfs.Info // at the time of opening
	fd     int        // base's descriptor, or -1
	direct int        // descriptor of the same file with O_DIRECT, or -1
	// refused is set if direct must not be used: it is missing, or the file system has refused a
	// transfer. counted is set after a stream has counted that.
	refused, counted atomic.Bool
	noDirect         error // why direct is missing, unless the file system refuses O_DIRECT

	mu      sync.Mutex
	users   int  // number of batches that move the file
	closing bool // no further batch may move the file
	idle    chan struct{}
	closed  bool

	registering   sync.Mutex
	registered    device.StorageFile // with cuFile, or nil
	failed        error              // error of the registration
	registrations *atomic.Int64      // counts attempted registrations
}

var _ mem.File = (*File)(nil)

// New returns a File that owns base, an open file. Close closes base. After an error of New the
// caller still owns base.
func New(base dirfs.File, name string) (*File, error) { return open(base, name, openDirect) }

func open(base dirfs.File, name string, direct func(fd int) (int, error)) (*File, error) {
	f := &File{base: base, name: name, fd: -1, direct: -1, idle: make(chan struct{}), registrations: new(atomic.Int64)}
	var err error
	if f.info, err = base.Stat(); err != nil {
		return nil, fmt.Errorf("open file %s: %w", name, err)
	}
	if d, ok := base.(dirfs.Descriptor); ok {
		f.fd = d.Descriptor()
		if f.direct, err = direct(f.fd); err != nil {
			f.direct = -1 // fd is still usable, and completions report the error
			if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EOPNOTSUPP) {
				f.noDirect = fmt.Errorf("open file %s with O_DIRECT: %w", name, err)
			}
		}
	}
	f.refused.Store(f.direct < 0)
	leak.Add(leak.Handles, 1)
	return f, nil
}

// openDirect opens the regular file behind fd again, even if it was renamed or removed. It sets no
// status flags except O_DIRECT, because cuFile refuses others.
func openDirect(fd int) (int, error) {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return -1, err
	}
	for {
		n, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), flags&unix.O_ACCMODE|unix.O_DIRECT|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// Name implements mem.File.
func (f *File) Name() string { return f.name }

// Info returns the file's Info at the time of opening.
func (f *File) Info() dirfs.Info { return f.info }

// Region returns a region of the first bytes of the file. For writes it may extend beyond the end
// of the file. It is valid until Close.
func (f *File) Region(bytes int64) (*mem.Region, error) {
	return mem.NewRegion(mem.RegionSpec{Kind: mem.KindFile, Device: mem.NoDevice, Len: bytes, File: f})
}

// retain keeps the file open until drop.
func (f *File) retain() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closing {
		return fmt.Errorf("file %s: %w", f.name, errdefs.ErrClosed)
	}
	f.users++
	return nil
}

func (f *File) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.users--; f.users == 0 && f.closing {
		close(f.idle)
	}
}

// isOpen reports whether the file has not been closed.
func (f *File) isOpen() bool {
	f.registering.Lock()
	defer f.registering.Unlock()
	return !f.closed
}

// inUse reports whether a batch is moving the file.
func (f *File) inUse() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.users > 0
}

// Close refuses new batches, waits for those that move the file, deregisters the file from cuFile,
// and closes its descriptors. If ctx ends first, the file stays open and Close may be called again.
// A second Close after success returns nil.
func (f *File) Close(ctx context.Context) error {
	f.mu.Lock()
	if !f.closing {
		f.closing = true
		if f.users == 0 {
			close(f.idle)
		}
	}
	f.mu.Unlock()
	select {
	case <-f.idle:
	default:
		select {
		case <-f.idle:
		case <-ctx.Done():
			return fmt.Errorf("close file %s: batches use it: %w: %w", f.name, errdefs.ErrBusy, context.Cause(ctx))
		}
	}
	f.registering.Lock()
	defer f.registering.Unlock()
	if f.closed {
		return nil
	}
	if f.registered != nil {
		if err := f.registered.Close(ctx); err != nil {
			return fmt.Errorf("close file %s: %w", f.name, err)
		}
		f.registered = nil
	}
	f.closed = true
	leak.Add(leak.Handles, -1)
	var err error
	if f.direct >= 0 {
		err = unix.Close(f.direct)
	}
	if err = errors.Join(err, f.base.Close()); err != nil {
		return fmt.Errorf("close file %s: %w", f.name, err)
	}
	return nil
}

// CuFileMode returns how cuFile moves the file. known is false unless the file is open and
// registered.
func (f *File) CuFileMode() (mode device.StorageMode, known bool) {
	f.registering.Lock()
	defer f.registering.Unlock()
	if f.registered == nil {
		return mode, false
	}
	return f.registered.Mode(), true
}

// storage registers the file with cuFile once. It keeps the error of a failure.
func (f *File) storage(s device.Storage) (device.StorageFile, error) {
	f.registering.Lock()
	defer f.registering.Unlock()
	if f.registered != nil || f.failed != nil {
		return f.registered, f.failed
	}
	if f.direct < 0 {
		f.failed = errors.Join(fmt.Errorf("register file %s: it could not be opened with O_DIRECT: %w", f.name, errdefs.ErrNotSupported), f.noDirect)
		return nil, f.failed
	}
	f.registrations.Add(1)
	if f.registered, f.failed = s.Register(f.direct); f.failed != nil {
		f.registered, f.failed = nil, fmt.Errorf("register file %s: %w", f.name, f.failed)
	}
	return f.registered, f.failed
}
