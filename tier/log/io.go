package log

import (
	"errors"
	"fmt"
	"io"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
)

// writer writes groups: their parts as they are where the file takes them so, else through one buffer.
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

// allocate takes the room for a segment, where the file system can.
func allocate(f dirfs.File, bytes int64) error {
	s, ok := f.(dirfs.Sizer)
	if !ok {
		return nil
	}
	if err := s.Allocate(bytes); !errors.Is(err, errdefs.ErrNotSupported) {
		return err
	}
	return nil
}

// truncate cuts a segment to what is written, where the file system can.
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
