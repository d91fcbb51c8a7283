package dirfs

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// Reader reads files past the page cache, and many at a time. The streams of package stream/file
// implement it.
type Reader interface {
	// Attach prepares an open file with the given name for reads. The caller closes the result
	// before the file. It returns ErrNotSupported if the file can be read only by ReadAt.
	Attach(f File, name string) (Attached, error)
}

// Attached is a file that a Reader reads. Its methods except Close are safe for concurrent use.
type Attached interface {
	// ReadExtent fills dst, host memory outside of the Go heap, from byte off on. It returns an
	// error that wraps io.EOF if the file ends earlier. After it returned nothing writes dst. The
	// end of ctx may stop it.
	ReadExtent(ctx context.Context, dst mem.Extent, off int64) error
	Close() error
}

// readChunk is the number of bytes that ReadFull reads between two checks of its context.
const readChunk = 8 << 20

// ReadFull fills b from byte off of f on, and checks ctx before each read of at most 8 MiB. It
// returns ErrCorrupt if the file ends earlier.
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
		if n == 0 { // a short read continues
			return fmt.Errorf("the file ends after %d of %d bytes: %w", off+int64(at), off+int64(len(b)), errdefs.ErrCorrupt)
		}
	}
	return nil
}

// ReadExtent is ReadFull for an attached file.
func ReadExtent(ctx context.Context, a Attached, dst mem.Extent, off int64) error {
	err := a.ReadExtent(ctx, dst, off)
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("the file ends before byte %d: %w: %w", off+dst.Len, errdefs.ErrCorrupt, err)
	}
	return err
}
