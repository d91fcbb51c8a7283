package log_test

import (
	"testing"

	"github.com/kvlane/kvlane/tier/tiertest"
)

// Emptied segments keep their pinned blocks, with half of the bound pinned.
func TestPinnedBlocksAreMoved(t *testing.T) {
	c := config(t)
	c.MaxBytes = 16 * segmentBytes
	tr := open(t, c)
	tiertest.PinnedStays(t, tr, c.Formats[0])
}
