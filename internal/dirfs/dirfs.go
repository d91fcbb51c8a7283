// Package dirfs reaches the files below a directory that others may write to as well: every name is resolved below the
// directory, no part of it may be a link, and nothing but regular files is ever opened. So whoever plants a link, a FIFO or a
// device there can neither redirect an operation elsewhere nor make it hang.
//
// Package faultfs has implementations for tests: one that fails on demand, and a disk whose power fails.
package dirfs

import (
	"errors"
	"io"
	"io/fs"
	"time"
)

// ErrIrregular is wrapped where a regular file was asked for and something else is there: a link, a FIFO, a socket, a device
// or a directory.
var ErrIrregular = errors.New("not a regular file")

// FS opens directories by the paths that users give. OS returns the operating system's.
type FS interface {
	// OpenDir opens a directory. Its own path may lead through links: whoever configured the path answers for it.
	OpenDir(path string) (Dir, error)
	// SyncParents makes the names of the directories on the way to a directory durable, its own included. It passes over those
	// that this process may not read, which it cannot have made.
	SyncParents(path string) error
}

// Dir is an open directory. Names are relative to it, their parts separated by slashes; "." is the directory itself. No part
// may be a link: an operation that meets one on its way fails with ENOTDIR or ELOOP. Errors wrap the errno, where there is
// one. All methods but Close are safe for concurrent use.
type Dir interface {
	// Open opens a regular file; flag is as in os.OpenFile. With O_DIRECTORY it opens a directory instead, which is of use
	// for File.Sync alone. ErrIrregular where something else is there.
	Open(name string, flag int) (File, error)
	// Stat describes what has the name, a link itself and not what it points at.
	Stat(name string) (Info, error)
	// ReadDir returns the names in a directory, sorted.
	ReadDir(name string) ([]string, error)
	Mkdir(name string) error
	// Rename gives what has oldname the name newname, atomically. What has that gives way if replace is set, else it is EEXIST.
	Rename(oldname, newname string, replace bool) error
	// Remove removes an empty directory, or anything else.
	Remove(name string) error
	// SetTime sets the access and modification times.
	SetTime(name string, t time.Time) error
	// Close gives the directory up. Nobody may be using it.
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
	// Lock locks the file for this open, exclusively, until Close. It does not wait: errdefs.ErrBusy where another holds the
	// lock.
	Lock() error
}

// Descriptor is a File of the operating system.
type Descriptor interface {
	File
	// Descriptor returns the file's descriptor, which stays the file's: nobody else closes it, and it is gone with Close.
	Descriptor() int
}

// Info describes a file.
type Info struct {
	Bytes    int64
	Modified time.Time
	Device   uint64      // of the file system that the file is on
	Inode    uint64      // tells files apart that had the same name one after the other, while one of them is open
	Type     fs.FileMode // the type's bits; zero for a regular file
	Links    uint64      // names of the file; zero once it was removed
}

// Regular says whether it is a regular file.
func (i Info) Regular() bool { return i.Type == 0 }

// Kind names what it is, for messages.
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
