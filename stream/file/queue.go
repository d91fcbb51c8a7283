package file

import (
	"context"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// queue moves single ranges of files, by one path. Any goroutines call it, several at once, but for close.
type queue interface {
	path() stream.Path
	// begin takes t, and returns without waiting for it. t.finish is called exactly once, by any goroutine, maybe before begin
	// returns; t is the queue's until then, and not after. Queues have no more than
	// Options.begun at a time, each of which may be a sweep that the page cache has nothing of: the stream sees to it, so there is room for t. Options.Transfers of them are under way; cuFile's queues,
	// which move one after the other whatever they have, may have all.
	begin(t *transfer)
	// flush is called after one begin or several: a queue may keep what it took until then.
	flush()
	// close gives back what the queue holds. Nothing is unfinished, and nothing is begun any more. If ctx ends first it may be
	// called again.
	close(ctx context.Context) error
}

// bufferQueue is a queue that wants to know of the staging memory before the first transfer to or from it: to register it.
type bufferQueue interface {
	queue
	// useBuffer is called once at most, beside transfers that do not use r. A failure costs speed at most, and is counted.
	useBuffer(r *mem.Region) error
}

// quarantineQueue is a queue that may have to keep transfers unfinished of which nothing tells whether they are over.
type quarantineQueue interface {
	queue
	quarantined() int
	// release finishes them if it can be proved before ctx ends that nothing touches their memory. It may be called again.
	release(ctx context.Context)
}
