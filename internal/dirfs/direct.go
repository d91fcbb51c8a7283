package dirfs

import (
	"context"
	"io"

	"github.com/kvlane/kvlane/mem"
)

// Direct transfers data between files and device memory without host memory of the caller. It keeps
// files open for later reads. All methods are safe for concurrent use.
type Direct interface {
	// Open opens a file for reading. It reuses a file that is still open if it has that name. It
	// returns the errors of Dir.Open. The caller releases the file.
	Open(ctx context.Context, d Dir, name string) (DirectFile, error)
	// OpenWriter opens a file for writing. flag is the flag of Dir.Open without the access mode.
	// The caller closes the file.
	OpenWriter(d Dir, name string, flag int) (DirectWriter, error)
	// Forget closes the file with that name when its last user releases it. Call it before the name
	// is removed or replaced, so that the disk space is freed.
	Forget(d Dir, name string)
}

// DirectFile is an open file of a Direct. Its methods except Release are safe for concurrent use.
type DirectFile interface {
	io.ReaderAt // reads headers to host memory
	Stat() (Info, error)
	// ReadDirect reads into dst, device memory, from offset off in the file. Offset, length and
	// address must be multiples of 4 KiB. If quiesced is nil, dst is no longer written when
	// ReadDirect returns. Otherwise err is not nil, and dst may be written until quiesced is
	// closed.
	ReadDirect(ctx context.Context, dst mem.Extent, off int64) (quiesced <-chan struct{}, err error)
	// Release ends the use of the file. A second call does nothing.
	Release()
}

// DirectWriter is a file opened by Direct.OpenWriter.
type DirectWriter interface {
	File
	// WriteDirect writes src, device memory, to offset off in the file. If quiesced is nil, src is
	// no longer read when WriteDirect returns. Otherwise err is not nil, and src may be read until
	// quiesced is closed.
	WriteDirect(ctx context.Context, src mem.Extent, off int64) (quiesced <-chan struct{}, err error)
}
