package blockdir

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
)

// CheckPath returns ErrInvalid for a path that cannot exist on Linux.
func CheckPath(path string) error {
	if strings.ContainsRune(path, 0) {
		return fmt.Errorf("directory %.80q has a NUL byte in its name: %w", path, errdefs.ErrInvalid)
	}
	if n := len(path); n >= unix.PathMax {
		return fmt.Errorf("directory %.80q: a path of %d bytes is longer than %d: %w", path, n, unix.PathMax-1, errdefs.ErrInvalid)
	}
	for name := range strings.SplitSeq(path, "/") {
		if n := len(name); n > unix.NAME_MAX {
			return fmt.Errorf("directory %.80q: a name of %d bytes is longer than %d: %w", path, n, unix.NAME_MAX, errdefs.ErrInvalid)
		}
	}
	return nil
}
