package guard

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/kvlane/kvlane/errdefs"
)

// Budget is memory that the requests of all peers share. Safe for concurrent use.
type Budget struct {
	bytes int64
	free  *semaphore.Weighted
	small int64
	limit time.Duration
}

// NewBudget returns a budget. A request of at most small bytes does not count; another waits for its turn until limit.
func NewBudget(bytes, small int64, limit time.Duration) *Budget {
	return &Budget{bytes: bytes, free: semaphore.NewWeighted(bytes), small: small, limit: limit}
}

// Take takes n bytes and returns the function that gives them back, which does nothing after an error. ErrBusy if other requests have them
// until the limit, or ctx ends.
func (b *Budget) Take(ctx context.Context, n int64) (release func(), err error) {
	nothing := func() {}
	if n <= b.small {
		return nothing, nil
	}
	ctx, cancel := context.WithTimeout(ctx, b.limit)
	defer cancel()
	if err := b.free.Acquire(ctx, n); err != nil {
		return nothing, fmt.Errorf("wait for %d of the %d bytes that requests may take: %w: %w", n, b.bytes, errdefs.ErrBusy, err)
	}
	return func() { b.free.Release(n) }, nil
}
