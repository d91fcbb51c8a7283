package dirfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The KV cache reveals users' texts, so the file permissions exclude other users.
const (
	fileMode = 0o640
	dirMode  = 0o750
)

// OS returns the file system of the operating system.
func OS() FS { return osFS{} }

type osFS struct{}

func (osFS) OpenDir(path string) (Dir, error) {
	fd, err := retry(func() (int, error) {
		return unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return keeper.open(fd, path), nil
}

func (osFS) SyncParents(path string) error {
	const flags = unix.O_DIRECTORY | unix.O_CLOEXEC
	open := func(at int, name string, flag int) (int, error) {
		return retry(func() (int, error) { return unix.Openat(at, name, flag|flags, 0) })
	}
	fd, err := open(unix.AT_FDCWD, path, unix.O_PATH)
	for err == nil {
		// Use "..", because path may contain links.
		var up int
		if up, err = open(fd, "..", unix.O_PATH); err != nil {
			break
		}
		var here, above unix.Stat_t
		err = errors.Join(unix.Fstat(fd, &here), unix.Fstat(up, &above))
		_ = unix.Close(fd)
		if fd = up; err != nil || here.Ino == above.Ino && here.Dev == above.Dev {
			break // the parent of the root is the root
		}
		var readable int
		if readable, err = open(fd, ".", unix.O_RDONLY); err == nil {
			_, err = retry(func() (int, error) { return 0, unix.Fdatasync(readable) })
			_ = unix.Close(readable)
		}
		// EINVAL means that the file system does not support sync for directories.
		if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.EINVAL) {
			err = nil
		}
	}
	if fd >= 0 {
		_ = unix.Close(fd)
	}
	if err != nil {
		return &fs.PathError{Op: "sync the parents of", Path: path, Err: err}
	}
	return nil
}

// osDir resolves names one part at a time and never follows links.
type osDir struct {
	fd   int
	path string
	kept map[string]*folder // open direct subfolders; guarded by keeper.mu
}

// at calls call with the folder that contains name and the last part of name.
func (d *osDir) at(op, name string, call func(dir int, base string) error) error {
	err := d.resolve(name, call)
	if err != nil {
		return &fs.PathError{Op: op, Path: d.path + "/" + name, Err: err}
	}
	return nil
}

func (d *osDir) resolve(name string, call func(dir int, base string) error) error {
	first, rest, more := strings.Cut(name, "/")
	if !more {
		return inFolder(d.fd, name, call)
	}
	if !sound(first) {
		return unix.EINVAL
	}
	f, err := d.acquire(first)
	if err != nil {
		return err
	}
	err = inFolder(f.fd, rest, call)
	removed := (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE)) && d.forget(first, f)
	d.release(f)
	if removed {
		return d.resolve(name, call) // name may now refer to another folder
	}
	return err
}

// inFolder resolves name relative to a folder and calls call with the result.
func inFolder(folder int, name string, call func(dir int, base string) error) error {
	dir := folder
	for {
		part, rest, more := strings.Cut(name, "/")
		err := error(unix.EINVAL)
		if sound(part) || part == "." && !more {
			if !more {
				_, err = retry(func() (int, error) { return 0, call(dir, part) })
			} else {
				var next int
				if next, err = openFolder(dir, part); err == nil {
					if dir != folder {
						_ = unix.Close(dir)
					}
					dir, name = next, rest
					continue
				}
			}
		}
		if dir != folder {
			_ = unix.Close(dir)
		}
		return err
	}
}

// sound reports whether part is a valid name of a folder entry.
func sound(part string) bool { return part != "" && part != "." && part != ".." }

func openFolder(dir int, name string) (int, error) {
	return retry(func() (int, error) {
		return unix.Openat(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
}

// retry repeats a system call after EINTR. If no descriptor is free, it closes kept folders and
// repeats the call.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		again := errors.Is(err, unix.EINTR)
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			again = keeper.closeIdle()
		}
		if !again {
			return n, err
		}
	}
}

func (d *osDir) Open(name string, flag int) (File, error) {
	f := &osFile{path: d.path + "/" + name}
	err := d.at("open", name, func(dir int, base string) (err error) {
		// These flags avoid blocking on a FIFO and acquiring a controlling terminal.
		f.fd, err = unix.Openat(dir, base, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, fileMode)
		return err
	})
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.EISDIR) {
		return nil, fmt.Errorf("%w: %w", ErrIrregular, err)
	}
	if err != nil {
		return nil, err
	}
	if flag&(unix.O_DIRECTORY|unix.O_EXCL) != 0 {
		return f, nil // a directory, or a new file
	}
	info, err := f.Stat()
	if err == nil && !info.Regular() {
		err = &fs.PathError{Op: "open", Path: f.path, Err: ErrIrregular}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (d *osDir) Stat(name string) (i Info, err error) {
	err = d.at("stat", name, func(dir int, base string) error {
		var st unix.Stat_t
		err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW)
		i = info(&st)
		return err
	})
	return i, err
}

func (d *osDir) ReadDir(name string) (names []string, err error) {
	var fd int
	err = d.at("readdir", name, func(dir int, base string) (err error) {
		fd, err = unix.Openat(dir, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), d.path+"/"+name)
	defer func() { err = errors.Join(err, f.Close()) }()
	names, err = f.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

func (d *osDir) Mkdir(name string) error {
	return d.at("mkdir", name, func(dir int, base string) error { return unix.Mkdirat(dir, base, dirMode) })
}

func (d *osDir) Rename(oldname, newname string, replace bool) error {
	return d.at("rename", oldname, func(from int, old string) error {
		return d.at("rename to", newname, func(to int, base string) error {
			if replace {
				return unix.Renameat(from, old, to, base)
			}
			return renameNew(from, old, to, base)
		})
	})
}

// renameNew renames without replacing an existing file.
func renameNew(from int, old string, to int, base string) error {
	err := unix.Renameat2(from, old, to, base, unix.RENAME_NOREPLACE)
	if err != unix.EINVAL && err != unix.ENOSYS {
		return err
	}
	return renameByLink(from, old, to, base)
}

// renameByLink is renameNew for file systems that do not support RENAME_NOREPLACE, such as NFS. It
// links the new name and removes the old one. It works for files only.
func renameByLink(from int, old string, to int, base string) error {
	switch err := unix.Linkat(from, old, to, base, 0); err {
	case nil:
		return unix.Unlinkat(from, old, 0)
	case unix.EPERM, unix.EOPNOTSUPP, unix.EMLINK:
	default:
		return err
	}
	// This is not atomic: an entry created after the check is replaced.
	var st unix.Stat_t
	if err := unix.Fstatat(to, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != unix.ENOENT {
		if err == nil {
			err = unix.EEXIST
		}
		return err
	}
	return unix.Renameat(from, old, to, base)
}

func (d *osDir) Remove(name string) error {
	return d.at("remove", name, func(dir int, base string) error {
		err := unix.Unlinkat(dir, base, 0)
		if err == nil || err == unix.ENOENT {
			return err
		}
		// For a directory, unlink returns different errors on different systems. rmdir returns
		// ENOTDIR for everything except directories.
		if rerr := unix.Unlinkat(dir, base, unix.AT_REMOVEDIR); rerr != unix.ENOTDIR {
			return rerr
		}
		return err
	})
}

func (d *osDir) SetTime(name string, t time.Time) error {
	ts, err := unix.TimeToTimespec(t)
	if err != nil {
		return &fs.PathError{Op: "settime", Path: d.path + "/" + name, Err: err}
	}
	return d.at("settime", name, func(dir int, base string) error {
		return unix.UtimesNanoAt(dir, base, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
	})
}

// Born returns the time at which a file was created. It is zero if that is unknown.
func Born(d Dir, name string) (t time.Time) {
	o, ok := d.(*osDir)
	if !ok {
		return t
	}
	_ = o.at("stat", name, func(dir int, base string) error {
		var st unix.Statx_t
		err := unix.Statx(dir, base, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BTIME, &st)
		if err == nil && st.Mask&unix.STATX_BTIME != 0 {
			t = time.Unix(st.Btime.Sec, int64(st.Btime.Nsec))
		}
		return err
	})
	return t
}

// osFile is an open file descriptor. It does not use os.File, which would register each file with
// the network poller.
type osFile struct {
	fd     int
	path   string
	locked bool // listed in the LockTable
}

var _ Descriptor = (*osFile)(nil)

// Descriptor implements dirfs.Descriptor.
func (f *osFile) Descriptor() int { return f.fd }

func (f *osFile) ReadAt(b []byte, off int64) (n int, err error) {
	for n < len(b) {
		m, err := retry(func() (int, error) { return unix.Pread(f.fd, b[n:], off+int64(n)) })
		if err != nil {
			return n, f.error("read", err)
		}
		if m == 0 {
			return n, io.EOF
		}
		n += m
	}
	return n, nil
}

func (f *osFile) WriteAt(b []byte, off int64) (n int, err error) {
	for n < len(b) {
		m, err := retry(func() (int, error) { return unix.Pwrite(f.fd, b[n:], off+int64(n)) })
		if err != nil {
			return n, f.error("write", err)
		}
		if m == 0 {
			return n, f.error("write", io.ErrShortWrite)
		}
		n += m
	}
	return n, nil
}

func (f *osFile) Stat() (Info, error) {
	var st unix.Stat_t
	if _, err := retry(func() (int, error) { return 0, unix.Fstat(f.fd, &st) }); err != nil {
		return Info{}, f.error("fstat", err)
	}
	return info(&st), nil
}

// Sync calls fdatasync, which does not sync the file times. They are not needed after a crash.
func (f *osFile) Sync() error {
	_, err := retry(func() (int, error) { return 0, unix.Fdatasync(f.fd) })
	return f.error("fdatasync", err)
}

func (f *osFile) error(op string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: f.path, Err: err}
}

func info(st *unix.Stat_t) Info {
	i := Info{Bytes: st.Size, Modified: time.Unix(st.Mtim.Unix()), Device: st.Dev, Inode: st.Ino, Links: uint64(st.Nlink)} //nolint:unconvert // Nlink has 32 bits on arm64
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		i.Type = fs.ModeDir
	case unix.S_IFLNK:
		i.Type = fs.ModeSymlink
	case unix.S_IFIFO:
		i.Type = fs.ModeNamedPipe
	case unix.S_IFSOCK:
		i.Type = fs.ModeSocket
	default:
		i.Type = fs.ModeDevice
	}
	return i
}
