package tier

import (
	"context"

	"github.com/kvlane/kvlane/block"
)

// Removed is the result of removing blocks.
type Removed struct {
	Keys  []block.Key // of the removed blocks
	Bytes int64       // of their images
	// Left joins the errors of blocks that stay because they are in use or cannot be removed.
	Left error
}

// Remover is a Tier that removes many blocks in less time than by single Deletes.
type Remover interface {
	// Remove removes blocks durably: when it returns, they are not found again, also after a power
	// failure. It skips missing blocks. Retained and pinned blocks, and those that are being
	// written or removed, stay: Removed.Left has an error that wraps ErrBusy. After any other error
	// some of the blocks may be removed.
	Remove(ctx context.Context, keys []block.Key) (Removed, error)
}
