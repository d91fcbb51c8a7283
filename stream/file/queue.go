package file

import (
	"context"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// queue moves single ranges of files by one path. All methods except close are safe for concurrent
// use.
type queue interface {
	path() stream.Path
	// begin accepts t and returns without waiting for it. The queue calls t.finish exactly once, on
	// any goroutine, possibly before begin returns. It does not use t afterwards. The stream limits
	// the load to Options.begun, so the queue has space for t. Each unit of that load may be a
	// sweep that missed the page cache. At most Options.Transfers transfers are in flight. The
	// queues of cuFile run transfers in order and may have all in flight.
	begin(t *transfer)
	// flush is called after one or more calls of begin. A queue may delay transfers until then.
	flush()
	// close releases the queue's resources. There are no unfinished transfers and no later calls of
	// begin. If ctx ends first, close may be called again.
	close(ctx context.Context) error
}

// bufferQueue is a queue that registers the staging memory before the first transfer that uses it.
type bufferQueue interface {
	queue
	// useBuffer is called at most once, possibly concurrently with transfers that do not use r. An
	// error only reduces speed and is counted.
	useBuffer(r *mem.Region) error
}

// quarantineQueue is a queue that may have transfers whose end is unknown.
type quarantineQueue interface {
	queue
	quarantined() int
	// release finishes such transfers if it can determine, before ctx ends, that no hardware
	// accesses their memory. It may be called again.
	release(ctx context.Context)
}
