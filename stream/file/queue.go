package file

import (
	"context"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// queue moves single ranges of files, by one path. One goroutine or several call it, but for close.
type queue interface {
	path() stream.Path
	// begin takes t, and returns without waiting for it. Its finish is called exactly once, by any goroutine, maybe before begin
	// returns; t is the queue's until then, and not after. No more than the number of transfers that the queue was made for
	// are unfinished at a time: the stream sees to it, so there is room for t.
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
	// useBuffer may be called once, at any time. A failure costs speed at most.
	useBuffer(r *mem.Region) error
}

// transfer is one range of a file, to or from one extent of memory.
type transfer struct {
	file  *File
	off   int64      // of the range in the file
	mem   mem.Extent // as long as the range; Bytes is nil of device memory, which only cuFile is given
	write bool
	// direct: by the file's descriptor with O_DIRECT (File.direct), as offset, length and address are multiples of Align.
	// Otherwise by the buffered one (File.fd), or where that is negative by File.base.
	direct bool

	part *part
	need int64 // bytes from off on that must be moved: a direct read may end behind the file's end
	done int64 // bytes moved so far
}

// finish is called by a queue when nothing touches the memory of t any more. n is how many bytes were moved, from the
// start on: fewer, without an error, is for the stream to go on from. err is the native cause.
func (t *transfer) finish(n int64, err error) { t.part.moved(t, n, err) }
