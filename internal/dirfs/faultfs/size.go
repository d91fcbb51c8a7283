package faultfs

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
)

// Allocate counts as operation "allocate" of a plan.
func (h *handle) Allocate(bytes int64) error {
	return h.size("allocate", func(s dirfs.Sizer) error { return s.Allocate(bytes) })
}

// Truncate counts as operation "truncate" of a plan.
func (h *handle) Truncate(bytes int64) error {
	return h.size("truncate", func(s dirfs.Sizer) error { return s.Truncate(bytes) })
}

// PunchHole counts as operation "punch" of a plan.
func (h *handle) PunchHole(off, n int64) error {
	return h.size("punch", func(s dirfs.Sizer) error { return s.PunchHole(off, n) })
}

// StartWriteback counts as operation "writeback" of a plan.
func (h *handle) StartWriteback(off, n int64) error {
	if err := h.fs.whole("writeback", h.name); err != nil {
		return err
	}
	if w, ok := h.File.(dirfs.WritebackStarter); ok {
		return w.StartWriteback(off, n)
	}
	return nil
}

// NextData is not counted by the plan.
func (h *handle) NextData(off int64) (int64, error) {
	if d, ok := h.File.(dirfs.DataFinder); ok {
		return d.NextData(off)
	}
	return off, nil
}

// NextHole is not counted by the plan.
func (h *handle) NextHole(off int64) (int64, error) {
	if d, ok := h.File.(dirfs.DataFinder); ok {
		return d.NextHole(off)
	}
	i, err := h.File.Stat()
	return i.Bytes, err
}

func (h *handle) size(op string, do func(dirfs.Sizer) error) error {
	if err := h.fs.whole(op, h.name); err != nil {
		return err
	}
	s, ok := h.File.(dirfs.Sizer)
	if !ok {
		return fmt.Errorf("%s %s: %w", op, h.name, errdefs.ErrNotSupported)
	}
	return do(s)
}

// Allocate extends the file with zeros. They use disk space.
func (f *diskFile) Allocate(bytes int64) error {
	return f.do("fallocate", func() error {
		disk, size := f.process.disk, int64(len(f.inode.data))
		switch more := bytes - size; {
		case f.flag&unix.O_ACCMODE == os.O_RDONLY:
			return unix.EBADF
		case more <= 0:
			return nil
		case disk.available(more) < more:
			return unix.ENOSPC
		}
		disk.change(f.inode, write{size, make([]byte, bytes-size), bytes})
		return nil
	})
}

// PunchHole returns ErrNotSupported, because files of a Disk cannot have holes.
func (f *diskFile) PunchHole(_, _ int64) error {
	return fmt.Errorf("punch hole: %w", errdefs.ErrNotSupported)
}

// Truncate cuts the file.
func (f *diskFile) Truncate(bytes int64) error {
	return f.do("truncate", func() error {
		switch {
		case f.flag&unix.O_ACCMODE == os.O_RDONLY:
			return unix.EBADF
		case bytes < 0 || bytes > int64(len(f.inode.data)):
			return unix.EINVAL
		}
		f.process.disk.change(f.inode, write{size: bytes})
		return nil
	})
}
