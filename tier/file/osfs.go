package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
)

// The KV cache tells what its users wrote, so others on the machine may not read it.
const (
	fileMode = 0o640
	dirMode  = 0o750
)

// OS returns the operating system's files.
func OS() FS { return osFS{} }

type osFS struct{}

func (osFS) Open(name string, flag int) (File, error) {
	f, err := os.OpenFile(name, flag, fileMode)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) Stat(name string) (Info, error) {
	fi, err := os.Stat(name)
	if err != nil {
		return Info{}, err
	}
	return info(fi), nil
}

func (osFS) ReadDir(name string) (names []string, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	names, err = f.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

func (osFS) Mkdir(name string) error                { return os.Mkdir(name, dirMode) }
func (osFS) Rename(oldname, newname string) error   { return os.Rename(oldname, newname) }
func (osFS) Remove(name string) error               { return os.Remove(name) }
func (osFS) SetTime(name string, t time.Time) error { return os.Chtimes(name, t, t) }

type osFile struct{ *os.File }

func (f osFile) Stat() (Info, error) {
	fi, err := f.File.Stat()
	if err != nil {
		return Info{}, err
	}
	return info(fi), nil
}

// Sync is fdatasync: the times that it leaves out matter to nobody after a crash.
func (f osFile) Sync() error {
	return f.control("fdatasync", unix.Fdatasync)
}

func (f osFile) Lock(wait bool) error {
	how := unix.LOCK_EX
	if !wait {
		how |= unix.LOCK_NB
	}
	err := f.control("flock", func(fd int) error { return unix.Flock(fd, how) })
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("%w: %w", errdefs.ErrBusy, err)
	}
	return err
}

func (f osFile) control(op string, call func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = conn.Control(func(fd uintptr) {
		for {
			result = call(int(fd))
			if !errors.Is(result, unix.EINTR) {
				return
			}
		}
	})
	if err == nil && result != nil {
		err = &fs.PathError{Op: op, Path: f.Name(), Err: result}
	}
	return err
}

func info(fi fs.FileInfo) Info {
	i := Info{Bytes: fi.Size(), Modified: fi.ModTime(), Dir: fi.IsDir()}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		i.Inode = st.Ino
	}
	return i
}
