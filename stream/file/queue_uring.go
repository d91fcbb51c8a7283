package file

import (
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
)

// openURing opens a queue of path uring, for so many transfers.
func openURing(int) (queue, error) {
	return nil, fmt.Errorf("io_uring is not in this build: %w", errdefs.ErrNotSupported)
}
