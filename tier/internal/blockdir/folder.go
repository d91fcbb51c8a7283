package blockdir

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/internal/dirfs"
)

// MakeDir creates a directory and its missing parents. Each parent is durable before its child is
// created.
func MakeDir(fsys dirfs.FS, path string) error {
	parent, name := filepath.Dir(path), filepath.Base(path)
	up, err := fsys.OpenDir(parent)
	if Gone(err) && parent != path {
		if err := MakeDir(fsys, parent); err != nil {
			return err
		}
		up, err = fsys.OpenDir(parent)
	}
	if err != nil {
		return err
	}
	err = Mkdir(up, name)
	if err == nil {
		err = SyncRoot(up)
	}
	return errors.Join(err, up.Close())
}

// SyncRoot makes the entries directly in the directory durable.
func SyncRoot(d dirfs.Dir) error {
	_, err := SyncFolder(d, ".")
	return err
}

// SyncFolder makes the entries of a folder durable, and returns the inode of the folder.
func SyncFolder(d dirfs.Dir, name string) (uint64, error) {
	f, err := d.Open(name, os.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return 0, err
	}
	info, err := f.Stat()
	if err == nil {
		err = f.Sync()
	}
	return info.Inode, errors.Join(err, f.Close())
}

// Remove removes a file. A missing file is not an error.
func Remove(d dirfs.Dir, name string) error {
	if err := d.Remove(name); err != nil && !Gone(err) {
		return err
	}
	return nil
}

// Mkdir creates a directory. An existing one is not an error.
func Mkdir(d dirfs.Dir, name string) error {
	if err := d.Mkdir(name); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// Names lists a folder. A missing folder counts as empty.
func Names(d dirfs.Dir, path string) ([]string, error) {
	n, err := d.ReadDir(path)
	if Gone(err) {
		return nil, nil
	}
	return n, err
}

// WriteFile writes a new file. On failure it removes the file. It returns the file's Info after the
// write.
func WriteFile(d dirfs.Dir, name string, b []byte, sync bool) (info dirfs.Info, err error) {
	f, err := d.Open(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return dirfs.Info{}, err
	}
	return FinishFile(d, name, f, WriteAll(f, name, b, 0), sync)
}

// WriteAll writes all of b to a file at offset off.
func WriteAll(f dirfs.File, name string, b []byte, off int64) error {
	n, err := f.WriteAt(b, off)
	if err == nil && n != len(b) {
		err = fmt.Errorf("write %s: %d of %d bytes: %w", name, n, len(b), io.ErrShortWrite)
	}
	return err
}

// FinishFile closes a new file after a write that ended with err, and before that syncs it if
// requested. It returns the file's Info after the write. If anything failed, it removes the file.
func FinishFile(d dirfs.Dir, name string, f dirfs.File, err error, sync bool) (info dirfs.Info, _ error) {
	if err == nil && sync {
		err = f.Sync()
	}
	if err == nil {
		info, err = f.Stat()
	}
	// Network file systems report failed writes at close.
	err = errors.Join(err, f.Close())
	if err != nil {
		err = errors.Join(err, d.Remove(name))
	}
	return info, err
}

// NewID returns 16 random bytes in hexadecimal, for unique names.
func NewID() string {
	var id [16]byte
	rand.Read(id[:])
	return hex.EncodeToString(id[:])
}
