// Package faultfs has file systems for tests. New injects the faults of a plan into a file system.
// A Disk simulates power failures, in which it loses unsynced content.
//
// The operations of a plan have the names of the methods of dirfs.Dir and dirfs.File: opendir;
// open, stat, readdir, mkdir, rename, remove, settime; read, write, fstat, sync, lock, allocate,
// truncate, punch, close. The cause of a fault is wrapped in an fs.PathError with the path, like
// an error of the operating system. Actions other than Fail:
//
//   - Partial does half of a write and returns the error, like a full device.
//   - Corrupt flips one bit of read or written bytes.
//   - Stall and Delay precede the operation.
//   - Crash makes this operation and all later ones except close fail without effect. The
//     directory then has the state after a killed process. Its locks are released with its files,
//     as the system does.
package faultfs

import (
	"context"
	"errors"
	"io/fs"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/fault"
)

// ErrCrashed is returned by every operation after a crash.
var ErrCrashed = errors.New("the process has crashed")

// FS injects the faults of its plan into another file system. It is safe for concurrent use.
type FS struct {
	base    dirfs.FS
	plan    atomic.Pointer[fault.Plan]
	veto    atomic.Pointer[Veto]
	clock   clockwork.Clock
	crashed atomic.Bool
}

// New returns base with the faults of plan. clock measures delays. Nil: the system clock.
func New(base dirfs.FS, plan *fault.Plan, clock clockwork.Clock) *FS {
	if clock == nil {
		clock = clockwork.NewRealClock()
	}
	f := &FS{base: base, clock: clock}
	f.Use(plan)
	return f
}

// Veto is called before every operation with the operation's name and the file's path. If it
// returns an error, the operation fails with it. Use it to fail operations on certain files, or for
// other side effects. It may be called concurrently.
type Veto func(op, path string) error

// Forbid sets the veto. Nil removes it.
func (f *FS) Forbid(veto Veto) { f.veto.Store(&veto) }

// Use sets the plan, also for open files. A nil plan has no faults.
func (f *FS) Use(plan *fault.Plan) { f.plan.Store(plan) }

// Crash makes every later operation fail.
func (f *FS) Crash() { f.crashed.Store(true) }

// hit counts the operation in the plan and applies the fault, if any. It returns faults that the
// operation must apply itself.
func (f *FS) hit(op, path string) (fault.Fault, error) {
	if f.crashed.Load() {
		return fault.Fault{}, &fs.PathError{Op: op, Path: path, Err: ErrCrashed}
	}
	if veto := f.veto.Load(); veto != nil && *veto != nil {
		if err := (*veto)(op, path); err != nil {
			return fault.Fault{}, &fs.PathError{Op: op, Path: path, Err: err}
		}
	}
	hit, ok := f.plan.Load().Hit(op)
	if !ok {
		return fault.Fault{}, nil
	}
	switch hit.Action {
	case fault.Fail:
		return fault.Fault{}, &fs.PathError{Op: op, Path: path, Err: hit.Err}
	case fault.Crash:
		f.Crash()
		return fault.Fault{}, &fs.PathError{Op: op, Path: path, Err: ErrCrashed}
	case fault.Stall:
		// A system call that hangs ignores contexts, so only the plan's Release ends the stall.
		return fault.Fault{}, hit.Wait(context.Background())
	case fault.Delay:
		f.clock.Sleep(hit.Delay)
	case fault.Partial, fault.Corrupt:
		return hit, nil
	}
	return fault.Fault{}, nil
}

// whole is like hit, for operations that have no partial result: Partial makes them fail, and
// Corrupt has no effect.
func (f *FS) whole(op, path string) error {
	hit, err := f.hit(op, path)
	if err == nil && hit.Action == fault.Partial {
		return &fs.PathError{Op: op, Path: path, Err: hit.Err}
	}
	return err
}

// OpenDir opens a directory with the faults of the plan.
func (f *FS) OpenDir(path string) (dirfs.Dir, error) {
	if err := f.whole("opendir", path); err != nil {
		return nil, err
	}
	d, err := f.base.OpenDir(path)
	if err != nil {
		return nil, err
	}
	return &dir{Dir: d, fs: f, path: path}, nil
}

// SyncParents counts as one sync operation.
func (f *FS) SyncParents(path string) error {
	if err := f.whole("sync", path); err != nil {
		return err
	}
	return f.base.SyncParents(path)
}

type dir struct {
	dirfs.Dir
	fs   *FS
	path string
}

// whole calls FS.whole with the full path of name.
func (d *dir) whole(op, name string) error { return d.fs.whole(op, d.path+"/"+name) }

func (d *dir) Open(name string, flag int) (dirfs.File, error) {
	if err := d.whole("open", name); err != nil {
		return nil, err
	}
	h, err := d.Dir.Open(name, flag)
	if err != nil {
		return nil, err
	}
	return &handle{File: h, fs: d.fs, name: d.path + "/" + name}, nil
}

func (d *dir) Stat(name string) (dirfs.Info, error) {
	if err := d.whole("stat", name); err != nil {
		return dirfs.Info{}, err
	}
	return d.Dir.Stat(name)
}

func (d *dir) ReadDir(name string) ([]string, error) {
	if err := d.whole("readdir", name); err != nil {
		return nil, err
	}
	return d.Dir.ReadDir(name)
}

func (d *dir) Mkdir(name string) error {
	if err := d.whole("mkdir", name); err != nil {
		return err
	}
	return d.Dir.Mkdir(name)
}

func (d *dir) Rename(oldname, newname string, replace bool) error {
	if err := d.whole("rename", newname); err != nil {
		return err
	}
	return d.Dir.Rename(oldname, newname, replace)
}

func (d *dir) Remove(name string) error {
	if err := d.whole("remove", name); err != nil {
		return err
	}
	return d.Dir.Remove(name)
}

func (d *dir) SetTime(name string, t time.Time) error {
	if err := d.whole("settime", name); err != nil {
		return err
	}
	return d.Dir.SetTime(name, t)
}

type handle struct {
	dirfs.File
	fs   *FS
	name string
}

func (h *handle) ReadAt(b []byte, off int64) (int, error) {
	hit, err := h.fs.hit("read", h.name)
	if err != nil {
		return 0, err
	}
	if hit.Action == fault.Partial {
		// A short read without an error, as happens after a signal or on a network file system.
		return h.File.ReadAt(b[:(len(b)+1)/2], off)
	}
	n, err := h.File.ReadAt(b, off)
	if hit.Action == fault.Corrupt && n > 0 {
		b[hit.Rand%uint64(n)] ^= 1
	}
	return n, err
}

func (h *handle) WriteAt(b []byte, off int64) (int, error) {
	hit, err := h.fs.hit("write", h.name)
	if err != nil {
		return 0, err
	}
	if hit.Action == fault.Partial {
		n, err := h.File.WriteAt(b[:len(b)/2], off)
		return n, errors.Join(&fs.PathError{Op: "write", Path: h.name, Err: hit.Err}, err)
	}
	if hit.Action == fault.Corrupt && len(b) > 0 {
		b = append([]byte(nil), b...) // the caller's slice must not change
		b[hit.Rand%uint64(len(b))] ^= 1
	}
	return h.File.WriteAt(b, off)
}

func (h *handle) Stat() (dirfs.Info, error) {
	if err := h.fs.whole("fstat", h.name); err != nil {
		return dirfs.Info{}, err
	}
	return h.File.Stat()
}

func (h *handle) Sync() error {
	if err := h.fs.whole("sync", h.name); err != nil {
		return err
	}
	return h.File.Sync()
}

func (h *handle) Lock() error {
	if err := h.fs.whole("lock", h.name); err != nil {
		return err
	}
	return h.File.Lock()
}

// Close closes the file even if it returns an error.
func (h *handle) Close() error {
	err := h.File.Close()
	if h.fs.crashed.Load() {
		return err
	}
	return errors.Join(h.fs.whole("close", h.name), err)
}
