package file

import (
	"io"
	"time"
)

// FS is what a tier asks of a file system; OS is the operating system's. Errors wrap the errno. All methods are safe for
// concurrent use.
type FS interface {
	// Open opens a file or a directory; flag is as in os.OpenFile.
	Open(name string, flag int) (File, error)
	Stat(name string) (Info, error)
	// ReadDir returns the names in a directory, sorted.
	ReadDir(name string) ([]string, error)
	Mkdir(name string) error
	// Rename puts oldname in the place of newname, atomically.
	Rename(oldname, newname string) error
	// Remove removes a file or an empty directory.
	Remove(name string) error
	// SetTime sets the access and modification times.
	SetTime(name string, t time.Time) error
}

// File is an open file of an FS.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Stat() (Info, error)
	// Sync makes contents and length durable; of a directory, its entries.
	Sync() error
	// Lock locks the file for this open, exclusively, until Close. Without wait it returns ErrBusy where another
	// holds the lock.
	Lock(wait bool) error
}

// Info describes a file.
type Info struct {
	Bytes    int64
	Modified time.Time
	Inode    uint64 // tells files apart that had the same name one after the other, while one of them is open
	Dir      bool
}
