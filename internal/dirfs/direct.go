package dirfs

import (
	"context"
	"io"

	"github.com/kvlane/kvlane/mem"
)

// Direct moves bytes between files and memory of a device, without host memory of the caller. It
// keeps files open for later reads. All methods are safe for concurrent use.
type Direct interface {
	// Open returns the file with that name for reading: one that is kept open, if it still has the
	// name. The errors are those of Dir.Open. The caller releases the file.
	Open(ctx context.Context, d Dir, name string) (DirectFile, error)
	// OpenWriter opens a file for writing. flag is that of Dir.Open, without the access mode. The
	// file is not kept open: the caller closes it.
	OpenWriter(d Dir, name string, flag int) (DirectWriter, error)
	// Forget closes the file with that name when its last user has released it. Call it before the
	// name is removed or given to another file, so that the file's space is free afterwards.
	Forget(d Dir, name string)
}

// DirectFile is an open file of a Direct. Its methods except Release are safe for concurrent use.
type DirectFile interface {
	io.ReaderAt // to host memory, for headers
	Stat() (Info, error)
	// ReadDirect fills dst, memory of the device, from byte off on. Offset, length and address must
	// be multiples of 4 KiB. If quiesced is nil, nothing writes dst after ReadDirect has returned.
	// Otherwise there is an error, and nothing writes dst after quiesced is closed.
	ReadDirect(ctx context.Context, dst mem.Extent, off int64) (quiesced <-chan struct{}, err error)
	// Release ends the use of the file. A second call does nothing.
	Release()
}

// DirectWriter is a file of a Direct that is open for writing.
type DirectWriter interface {
	File
	// WriteDirect writes src, memory of the device, from byte off on. Otherwise it is like
	// DirectFile.ReadDirect: without quiesced nothing reads src afterwards.
	WriteDirect(ctx context.Context, src mem.Extent, off int64) (quiesced <-chan struct{}, err error)
}
