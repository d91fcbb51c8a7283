package log

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
)

// readHeader reads the header of the group at a position. It returns ErrCorrupt if no group of this
// directory begins there, and ErrMismatch for another version.
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

const (
	// scanWindow is the length of one read in the search for a group.
	scanWindow = 1 << 20
	// foreignBytes is the number of bytes that are searched for the first group of a file. A file
	// without one is not a segment of this log. Holes do not count.
	foreignBytes = 64 << 20
	// zeroBytes is the number of zeros that are read to recognize a segment whose creator was killed
	// before its first write. File systems report parts of its allocated space as data if they are in
	// the page cache.
	zeroBytes = 1 << 30
)

// scan calls yield for every group of a segment from off on, and returns the end of the last one.
// It skips pages outside groups, because groups may follow them. In a file that is read from its
// start, the search for the first group ends after foreignBytes. It returns ErrMismatch if it has
// skipped a group of another version.
func scan(ctx context.Context, f dirfs.File, number uint32, off, size int64, id [16]byte, formats block.Formats, yield func(*header) error) (end int64, err error) {
	end = off
	var window []byte
	var other error
	searched := int64(0) // bytes before the first group
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
		budget := int64(math.MaxInt64)
		if end == 0 {
			budget = foreignBytes - searched
		}
		next, read, err := findGroup(ctx, f, window, off+page, size, budget)
		if err != nil {
			return end, err
		}
		off, searched = next, searched+page+read
	}
	return end, other
}

// findGroup returns the first page from off on that begins like a group, or the end of the file,
// and the number of bytes read. After reading budget bytes it returns the end.
func findGroup(ctx context.Context, f dirfs.File, window []byte, off, size, budget int64) (at, read int64, err error) {
	for off = skipHole(f, off, size); off+page <= size && read < budget; off = skipHole(f, off, size) {
		b := window[:min(int64(len(window)), (size-off)/page*page)]
		if err := dirfs.ReadFull(ctx, f, b, off); err != nil {
			if errors.Is(err, errdefs.ErrCorrupt) {
				return size, read, nil // the file was truncated meanwhile
			}
			return 0, read, err
		}
		for at := 0; at < len(b); at += page {
			if bytes.HasPrefix(b[at:], []byte(groupMagic)) {
				return off + int64(at), read + int64(at), nil
			}
		}
		off += int64(len(b))
		read += int64(len(b))
	}
	return size, read, nil
}

// keepReason reads a whole file. If the file contains a group with blocks or of another version,
// keepReason returns a reason to keep it.
func keepReason(ctx context.Context, f dirfs.File, size int64, formats block.Formats) (why string, err error) {
	window, head := make([]byte, scanWindow), make([]byte, maxHeader)
	for off := int64(0); ; off += page {
		if off, _, err = findGroup(ctx, f, window, off, size, math.MaxInt64); err != nil || off+page > size {
			return "", err
		}
		b := head[:min(maxHeader, size-off)]
		if err := dirfs.ReadFull(ctx, f, b, off); err != nil {
			return "", err
		}
		switch h, err := decodeHeader(b, formats); {
		case errors.Is(err, errdefs.ErrMismatch):
			return "it has groups of another version of the log", nil
		case err == nil && slices.ContainsFunc(h.records, func(r record) bool { return r.kind != deleted }):
			return "it has blocks of a log, like a segment", nil
		}
	}
}

// skipHole returns the first page with data from off on, or size if only a hole follows.
func skipHole(f dirfs.File, off, size int64) int64 {
	d, ok := f.(dirfs.DataFinder)
	if !ok || off >= size {
		return off
	}
	at, err := d.NextData(off)
	switch {
	case errors.Is(err, io.EOF):
		return size
	case err != nil:
		return off // the file system may not support it
	}
	return max(off, at/page*page)
}

// holes returns the number of bytes in the holes of a file. It returns 0 if the file system does
// not report them.
func holes(f dirfs.File, size int64) (n int64) {
	d, ok := f.(dirfs.DataFinder)
	for at := int64(0); ok && at < size; {
		hole, err := d.NextHole(at)
		if err != nil || hole >= size {
			break
		}
		at = skipHole(f, hole, size)
		n += at - hole
		if at == hole {
			break // a file system may report holes shorter than a page
		}
	}
	return n
}

// isUnfinished reports whether a file without a group is a segment whose creator ended too early.
func isUnfinished(ctx context.Context, f dirfs.File, size int64) bool {
	b := make([]byte, min(page, size))
	// The first page is read last: a read brings more of the file into the page cache.
	if !zeroFrom(ctx, f, page, size) || dirfs.ReadFull(ctx, f, b, 0) != nil {
		return false
	}
	magic := b[:min(len(b), len(groupMagic))]
	if !strings.HasPrefix(groupMagic, string(magic)) && len(bytes.TrimLeft(magic, "\x00")) > 0 {
		return false
	}
	return len(b) <= offTable || len(bytes.TrimLeft(b[offTable:max(offTable, len(b)-sumBytes)], "\x00")) == 0
}

// zeroFrom reports whether a file contains only zeros from off on. It reads at most zeroBytes.
func zeroFrom(ctx context.Context, f dirfs.File, off, size int64) bool {
	window, read := make([]byte, scanWindow), int64(0)
	for off = skipHole(f, off, size); off < size; off = skipHole(f, off, size) {
		if read >= zeroBytes {
			return false
		}
		b := window[:min(int64(len(window)), size-off)]
		if dirfs.ReadFull(ctx, f, b, off) != nil || len(bytes.TrimLeft(b, "\x00")) > 0 {
			return false
		}
		off += int64(len(b))
		read += int64(len(b))
	}
	return true
}
