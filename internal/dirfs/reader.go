package dirfs

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/kvlane/kvlane/errdefs"
)

// readChunk is the maximum length of one read of ReadFull. ctx is checked before each.
const readChunk = 8 << 20

// ReadFull reads len(b) bytes from offset off of f. It checks ctx before each read of at most 8
// MiB. It returns ErrCorrupt if the file ends earlier.
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
		if n == 0 { // a short read is not an error
			return fmt.Errorf("the file ends after %d of %d bytes: %w", off+int64(at), off+int64(len(b)), errdefs.ErrCorrupt)
		}
	}
	return nil
}
