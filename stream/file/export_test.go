package file

import "github.com/kvlane/kvlane/internal/dirfs"

// NewWith is New with another way to open a file with O_DIRECT.
func NewWith(base dirfs.File, name string, direct func(fd int) (int, error)) (*File, error) {
	return open(base, name, direct)
}

// IsDirect reports whether f is moved with O_DIRECT.
func (f *File) IsDirect() bool { return !f.refused.Load() }
