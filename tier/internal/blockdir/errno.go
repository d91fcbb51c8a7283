package blockdir

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
)

// Gone says that a file is not there, or is there no more: on a shared file system another host may remove it while
// this one has it open.
func Gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE)
}

// WriteError wraps the sentinel that says what a failed write means for the caller. The errors of FS name the path.
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
