package wire

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/kvlane/kvlane/errdefs"
)

// Budget limits the memory of the requests of all peers together. It is safe for concurrent use.
type Budget struct {
	bytes int64
	free  *semaphore.Weighted
	small int64
	limit time.Duration
}

// NewBudget returns a budget of bytes. Requests of at most small bytes are not counted. Larger
// requests wait for memory for at most limit.
func NewBudget(bytes, small int64, limit time.Duration) *Budget {
	return &Budget{bytes: bytes, free: semaphore.NewWeighted(bytes), small: small, limit: limit}
}

// TryTake reserves n bytes if they are free now. release releases them.
func (b *Budget) TryTake(n int64) (release func(), ok bool) {
	if n > b.small {
		return func() { b.free.Release(n) }, b.free.TryAcquire(n)
	}
	return func() {}, true
}

// Take reserves n bytes and returns a function that releases them. It blocks until other requests
// have released enough. It returns ErrBusy after the limit or when ctx ends; release then does
// nothing.
func (b *Budget) Take(ctx context.Context, n int64) (release func(), err error) {
	nothing := func() {}
	if n <= b.small {
		return nothing, nil
	}
	release = func() { b.free.Release(n) }
	if b.free.TryAcquire(n) {
		return release, nil
	}
	ctx, cancel := context.WithTimeout(ctx, b.limit)
	defer cancel()
	if err := b.free.Acquire(ctx, n); err != nil {
		return nothing, fmt.Errorf("wait for %d of the %d bytes that requests may take: %w: %w", n, b.bytes, errdefs.ErrBusy, err)
	}
	return release, nil
}
