// Package dirfs accesses the files below a directory to which other users may write. Every name is
// resolved below the directory, no part of it may be a link, and only regular files are opened. A
// planted link, FIFO or device can neither redirect an operation nor block it.
//
// Package faultfs has implementations for tests: one with injected faults, and a disk that loses
// power.
package dirfs

import (
	"errors"
	"io"
	"io/fs"
	"time"
)

// ErrIrregular is returned if a link, FIFO, socket, device or directory is in the place of a
// regular file.
var ErrIrregular = errors.New("not a regular file")

// FS opens directories by paths of the configuration. OS returns the operating system's.
type FS interface {
	// OpenDir opens a directory. Its own path may contain links, because it comes from the
	// configuration.
	OpenDir(path string) (Dir, error)
	// SyncParents makes the names of a directory and its parents durable. It skips directories that
	// this process may not read; it cannot have created them.
	SyncParents(path string) error
}

// Dir is an open directory. Names are relative to it, with slashes between their parts; "." is the
// directory itself. No part may be a link; an operation that finds one fails with ENOTDIR or ELOOP.
// Errors wrap the errno if there is one. All methods but Close are safe for concurrent use.
type Dir interface {
	// Open opens a regular file; flag is as in os.OpenFile. With O_DIRECTORY it opens a directory,
	// which is useful only for File.Sync. It returns ErrIrregular if the name is of another type.
	Open(name string, flag int) (File, error)
	// Stat describes the file of a name. It does not follow a link.
	Stat(name string) (Info, error)
	// ReadDir returns the names in a directory, sorted.
	ReadDir(name string) ([]string, error)
	Mkdir(name string) error
	// Rename renames oldname to newname atomically. If newname exists, it is replaced if replace is
	// set; else Rename returns EEXIST.
	Rename(oldname, newname string, replace bool) error
	// Remove removes a file or an empty directory.
	Remove(name string) error
	// SetTime sets the access and modification times.
	SetTime(name string, t time.Time) error
	// Close closes the directory. It must not be in use.
	Close() error
}

// File is an open file of a Dir.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Stat() (Info, error)
	// Sync makes contents and length durable; of a directory, its entries.
	Sync() error
	// Lock locks the file exclusively for this open, until Close. It does not wait: it returns
	// errdefs.ErrBusy if the lock is taken.
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
	Device   uint64 // of the file system that the file is on
	// distinguishes files with the same name at different times, while one of them is open
	Inode uint64
	Type  fs.FileMode // the type's bits; zero for a regular file
	Links uint64      // names of the file; zero once it was removed
}

// Regular reports whether it is a regular file.
func (i Info) Regular() bool { return i.Type == 0 }

// Kind returns the file type for messages.
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
