// Package dirfs accesses the files below a directory to which other users may write. Names are
// resolved below the directory and must not contain links. Only regular files are opened. Therefore
// links, FIFOs and devices that other users create cannot redirect or block an operation.
//
// Package faultfs has implementations for tests: one injects faults, and one simulates a power
// failure.
package dirfs

import (
	"errors"
	"io"
	"io/fs"
	"time"
)

// ErrIrregular is returned if a name is a link, FIFO, socket, device or directory instead of a
// regular file.
var ErrIrregular = errors.New("not a regular file")

// FS opens directories by the paths in the configuration. OS returns the implementation for the
// operating system.
type FS interface {
	// OpenDir opens a directory. Its path may contain links, because it comes from the
	// configuration.
	OpenDir(path string) (Dir, error)
	// SyncParents makes the names of a directory and its parents durable. It skips directories that
	// this process may not read; it cannot have created them.
	SyncParents(path string) error
}

// Dir is an open directory. Names are slash-separated paths relative to it; "." is the directory
// itself. If a part of a name is a link, the operation fails with ENOTDIR or ELOOP. Errors wrap the
// errno if there is one. All methods but Close are safe for concurrent use.
type Dir interface {
	// Open opens a regular file. flag is like that of os.OpenFile. With O_DIRECTORY it opens a
	// directory, which is useful only for File.Sync. It returns ErrIrregular for other types of
	// files.
	Open(name string, flag int) (File, error)
	// Stat returns information about a file. It does not follow links.
	Stat(name string) (Info, error)
	// ReadDir returns the sorted names in a directory.
	ReadDir(name string) ([]string, error)
	Mkdir(name string) error
	// Rename renames oldname to newname atomically. If newname exists, it is replaced if replace is
	// true, otherwise Rename returns EEXIST.
	Rename(oldname, newname string, replace bool) error
	// Remove removes a file or an empty directory.
	Remove(name string) error
	// SetTime sets the access and modification times.
	SetTime(name string, t time.Time) error
	// Close closes the directory. No operation may be in progress.
	Close() error
}

// File is an open file of a Dir.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Stat() (Info, error)
	// Sync makes the contents and length of a file durable, or the entries of a directory.
	Sync() error
	// Lock takes an exclusive lock on the file, which Close releases. It does not wait: if the file
	// is locked, it returns errdefs.ErrBusy.
	Lock() error
}

// Descriptor is a File of the operating system.
type Descriptor interface {
	File
	// Descriptor returns the file's descriptor. It is valid until Close. Callers must not close it.
	Descriptor() int
}

// Info describes a file.
type Info struct {
	Bytes    int64
	Modified time.Time
	Device   uint64 // device number of the file system
	// Inode distinguishes files that have the same name at different times, while one of them is
	// open.
	Inode uint64
	Type  fs.FileMode // type bits; zero for a regular file
	Links uint64      // number of names; zero after the file was removed
}

// Regular reports whether the file is a regular file.
func (i Info) Regular() bool { return i.Type == 0 }

// Kind returns a name of the file type for messages.
func (i Info) Kind() string {
	switch i.Type {
	case 0:
		return "regular file"
	case fs.ModeDir:
		return "directory"
	case fs.ModeSymlink:
		return "link"
	case fs.ModeNamedPipe:
		return "FIFO"
	case fs.ModeSocket:
		return "socket"
	default:
		return "device"
	}
}
