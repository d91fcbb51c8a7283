package file

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/mem"
)

// transfer moves one range of a file to or from one extent of memory.
type transfer struct {
	file *File
	off  int64 // offset of the range in the file
	// mem has the length of the range. Device memory, for which Bytes is nil, is passed only to
	// cuFile.
	mem   mem.Extent
	write bool
	// direct selects File.direct, the descriptor with O_DIRECT: offset, length and address are
	// multiples of Align. Otherwise File.fd is used, or File.base if File.fd is negative.
	direct bool
	// try makes a worker try the page cache first. On a miss the worker passes the transfer to
	// home.
	try   bool
	home  queue
	q     queue     // queue that is moving the transfer
	sweep *sweep    // its sweep, or nil
	next  *transfer // next transfer of the sweep

	part *part
	need int64 // bytes to move; a direct read may extend beyond the end of the file
	done int64 // bytes moved so far
	idle int   // consecutive attempts without progress
}

// mostIdle limits the consecutive attempts without progress that end with EINTR or EAGAIN.
const mostIdle = 1000

// finish is called by a queue when no hardware accesses t's memory any longer. n is the number of
// bytes moved from t.done on. If fewer bytes than requested were moved without an error, the stream
// continues after them. err is the native error.
func (t *transfer) finish(n int64, err error) {
	b := t.part.batch
	more, err := t.advance(n, err)
	switch {
	case more && b.ctx.Err() == nil:
		t.begin(t.home)
		t.home.flush()
		return
	case more:
		b.stop()
	case err != nil:
		b.failed(t, err)
	}
	b.finish(t.part, t.sweep, 1)
}

// begin passes t to q.
func (t *transfer) begin(q queue) {
	t.q = q
	q.begin(t)
}

// advance records the moved bytes. more is set if the rest must still be moved.
func (t *transfer) advance(n int64, err error) (more bool, _ error) {
	t.done += max(n, 0)
	if t.idle++; n > 0 {
		t.idle = 0
	}
	switch {
	case t.done >= t.need:
		return false, nil
	case t.idle < mostIdle && (errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN)):
		return true, nil
	case t.direct && errors.Is(err, unix.EINVAL):
		// The file system probably refuses direct transfers. EINVAL can have other causes too.
		t.part.batch.stream.refuse(t.file)
		t.part.batch.refused.Store(true)
		t.direct = false
		return true, nil
	case err != nil:
		return false, err
	case n <= 0 && t.write:
		return false, io.ErrShortWrite
	case n <= 0:
		return false, io.ErrUnexpectedEOF
	}
	if t.done%Align != 0 {
		t.direct = false
	}
	return true, nil
}

// explain adds the operation, the file and the path of t to err.
func (t *transfer) explain(err error) error {
	op := "read"
	if t.write {
		op = "write"
	}
	return fmt.Errorf("%s %d bytes of file %s at byte %d by %s: %w", op, t.need, t.file.name, t.off+t.done, t.q.path(), err)
}
