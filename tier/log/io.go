package log

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
)

// writer writes groups. It writes the parts directly from their memory if the file supports that,
// otherwise through a buffer.
type writer struct{ staging []byte }

func (w *writer) writeAt(f dirfs.File, parts [][]byte, off int64) error {
	var bytes, n int
	var err error
	for _, p := range parts {
		bytes += len(p)
	}
	if g, ok := f.(dirfs.Gatherer); ok {
		n, err = g.WriteAllAt(parts, off)
	} else {
		if cap(w.staging) < bytes {
			w.staging = make([]byte, 0, max(bytes, groupBytes+maxHeader))
		}
		w.staging = w.staging[:0]
		for _, p := range parts {
			w.staging = append(w.staging, p...)
		}
		n, err = f.WriteAt(w.staging, off)
	}
	if err == nil && n != bytes {
		err = fmt.Errorf("write %d of %d bytes: %w", n, bytes, io.ErrShortWrite)
	}
	return err
}

// allocate allocates the space of a segment, if the file system supports that, and returns the
// allocated length. If space is short, it tries half the length, a quarter and so on, but not less
// than least.
func allocate(f dirfs.File, bytes, least int64) (int64, error) {
	s, ok := f.(dirfs.Sizer)
	if !ok {
		return bytes, nil
	}
	for {
		err := s.Allocate(bytes)
		if err == nil || errors.Is(err, errdefs.ErrNotSupported) {
			return bytes, nil
		}
		// EFBIG reports a limit of the process.
		full := errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG)
		if !full || bytes <= least {
			return 0, err
		}
		if err := truncate(f, 0); err != nil { // frees a partial allocation
			return 0, err
		}
		bytes = max(least, pages(bytes/2)*page)
	}
}

// punchHole frees the space of a part of a segment. It returns ErrNotSupported if the file system
// does not support holes.
func punchHole(f dirfs.File, off, n int64) error {
	if s, ok := f.(dirfs.Sizer); ok {
		return s.PunchHole(off, n)
	}
	return errdefs.ErrNotSupported
}

// truncate truncates a segment if the file system supports that.
func truncate(f dirfs.File, bytes int64) error {
	s, ok := f.(dirfs.Sizer)
	if !ok {
		return nil
	}
	if err := s.Truncate(bytes); !errors.Is(err, errdefs.ErrNotSupported) {
		return err
	}
	return nil
}
