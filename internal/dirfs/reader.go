package dirfs

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// Reader reads files by a way of its own: past the page cache, and many at a time. Package stream/file's streams do.
type Reader interface {
	// Attach readies an open file, which has the name, for reads. The caller closes what it returns before the file. ErrNotSupported
	// where the file can be read by ReadAt alone.
	Attach(f File, name string) (Attached, error)
}

// Attached is a file that a Reader reads. Its methods but Close are safe for concurrent use.
type Attached interface {
	// ReadExtent fills dst, host memory that is not of the Go heap, from byte off on; an error that wraps io.EOF says that the file ends
	// before. When it returns nothing writes dst any more; the end of ctx may make that sooner.
	ReadExtent(ctx context.Context, dst mem.Extent, off int64) error
	Close() error
}

// readChunk is how much ReadFull reads between two looks at its context, in bytes.
const readChunk = 8 << 20

// ReadFull fills b from byte off of f on, and looks at ctx before and between reads of 8 MiB or less. ErrCorrupt where the file ends before.
func ReadFull(ctx context.Context, f File, b []byte, off int64) error {
	for at := 0; at < len(b); {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := f.ReadAt(b[at:min(at+readChunk, len(b))], off+int64(at))
		at += n
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if n == 0 { // less than asked for is read on
			return fmt.Errorf("the file ends after %d of %d bytes: %w", off+int64(at), off+int64(len(b)), errdefs.ErrCorrupt)
		}
	}
	return nil
}

// ReadExtent is ReadFull by what was attached.
func ReadExtent(ctx context.Context, a Attached, dst mem.Extent, off int64) error {
	err := a.ReadExtent(ctx, dst, off)
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("the file ends before byte %d: %w: %w", off+dst.Len, errdefs.ErrCorrupt, err)
	}
	return err
}
