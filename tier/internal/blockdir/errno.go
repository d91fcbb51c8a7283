package blockdir

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
)

// Gone reports whether a file is missing. On a shared file system another host may remove a file
// that this host has open.
func Gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE)
}

// WriteError wraps ErrNoSpace or ErrReadOnly if one of them describes a failed write.
func WriteError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("%w: %w", errdefs.ErrNoSpace, err)
	case errors.Is(err, unix.EROFS), errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: %w", errdefs.ErrReadOnly, err)
	}
	return err
}
