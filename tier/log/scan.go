package log

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
)

// readHeader reads the header of the group that begins there. Errors: ErrCorrupt where none of this directory does, ErrMismatch for one of
// another version.
func readHeader(ctx context.Context, f dirfs.File, at position, id [16]byte, formats block.Formats) (*header, error) {
	b := make([]byte, page)
	if err := dirfs.ReadFull(ctx, f, b, at.off); err != nil {
		return nil, err
	}
	n, err := headerLen(b)
	if err != nil {
		return nil, err
	}
	if n > page {
		b = append(b, make([]byte, n-page)...)
		if err := dirfs.ReadFull(ctx, f, b[page:], at.off+page); err != nil {
			return nil, err
		}
	}
	h, err := decodeHeader(b, formats)
	if err != nil {
		return nil, err
	}
	if h.at != at || h.directory != id && id != [16]byte{} {
		return nil, fmt.Errorf("the group at %d of segment %d is another's: %w", at.off, at.segment, errdefs.ErrCorrupt)
	}
	return h, nil
}

// scanWindow is how much is looked at at once where no group begins.
const scanWindow = 1 << 20

// scan calls yield for every group of a segment from off on, and says where the last ends. What is no group it passes over, page by page:
// in what follows there may be more. ErrMismatch says that it passed over a group of another version.
func scan(ctx context.Context, f dirfs.File, number uint32, off, size int64, id [16]byte, formats block.Formats, yield func(*header) error) (end int64, err error) {
	end = off
	var window []byte
	var other error
	for off+page <= size {
		h, err := readHeader(ctx, f, position{uint64(number), off}, id, formats)
		if err == nil {
			if err := yield(h); err != nil {
				return end, err
			}
			off += h.groupBytes
			end = min(off, size)
			continue
		}
		switch {
		case errors.Is(err, errdefs.ErrMismatch):
			other = err
		case !errors.Is(err, errdefs.ErrCorrupt):
			return end, err
		}
		if window == nil {
			window = make([]byte, scanWindow)
		}
		next, err := findGroup(ctx, f, window, off+page, size)
		if err != nil {
			return end, err
		}
		off = next
	}
	return end, other
}

// findGroup returns the first page from off on that begins as a group does, or the end of the file.
func findGroup(ctx context.Context, f dirfs.File, window []byte, off, size int64) (int64, error) {
	for off+page <= size {
		b := window[:min(int64(len(window)), (size-off)/page*page)]
		if err := dirfs.ReadFull(ctx, f, b, off); err != nil {
			if errors.Is(err, errdefs.ErrCorrupt) {
				return size, nil // it was cut meanwhile
			}
			return 0, err
		}
		for at := 0; at < len(b); at += page {
			if bytes.HasPrefix(b[at:], []byte(groupMagic)) {
				return off + int64(at), nil
			}
		}
		off += int64(len(b))
	}
	return size, nil
}

// unbegun says whether a file without a group is a segment whose making was cut short.
func unbegun(ctx context.Context, f dirfs.File, size int64) bool {
	b := make([]byte, min(page, size))
	if dirfs.ReadFull(ctx, f, b, 0) != nil || !zeroFrom(ctx, f, page, size) {
		return false
	}
	return len(b) <= offTable || len(bytes.TrimLeft(b[offTable:max(offTable, len(b)-sumBytes)], "\x00")) == 0
}

// zeroFrom says whether a file is zeros from off on.
func zeroFrom(ctx context.Context, f dirfs.File, off, size int64) bool {
	window := make([]byte, scanWindow)
	for off < size {
		b := window[:min(int64(len(window)), size-off)]
		if dirfs.ReadFull(ctx, f, b, off) != nil || len(bytes.TrimLeft(b, "\x00")) > 0 {
			return false
		}
		off += int64(len(b))
	}
	return true
}
