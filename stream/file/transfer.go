package file

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/mem"
)

// transfer is one range of a file, to or from one extent of memory.
type transfer struct {
	file  *File
	off   int64      // of the range in the file
	mem   mem.Extent // as long as the range; Bytes is nil of device memory, which only cuFile is given
	write bool
	// direct: by the file's descriptor with O_DIRECT (File.direct), as offset, length and address are multiples of Align.
	// Otherwise by the buffered one (File.fd), or where that is negative by File.base.
	direct bool
	// try: a worker looks in the page cache first, and hands the transfer on to home if it is not there.
	try   bool
	home  queue
	q     queue     // that has it
	sweep *sweep    // that it is of, or nil
	next  *transfer // of the sweep

	part *part
	need int64 // bytes from off on that must be moved: a direct read may end behind the file's end
	done int64 // bytes moved so far
	idle int   // times in a row that it was to be tried again with nothing moved
}

// mostIdle bounds how often a transfer is tried again that the system interrupts, or puts off, each time.
const mostIdle = 1000

// finish is called by a queue when nothing touches the memory of t any more. n is how many bytes were moved, from t.done
// on: fewer, without an error, is for the stream to go on from. err is the native cause.
func (t *transfer) finish(n int64, err error) {
	b := t.part.batch
	again, err := t.advance(n, err)
	switch {
	case again && b.ctx.Err() == nil:
		t.begin(t.home)
		t.home.flush()
		return
	case again:
		b.stop()
	case err != nil:
		b.failed(t, err)
	}
	b.landed(t.part, t.sweep, 1)
}

// begin gives t to q.
func (t *transfer) begin(q queue) {
	t.q = q
	q.begin(t)
}

// advance notes what was moved. again says that the rest has to be.
func (t *transfer) advance(n int64, err error) (again bool, _ error) {
	t.done += max(n, 0)
	if t.idle++; n > 0 {
		t.idle = 0
	}
	switch {
	case t.done >= t.need:
		return false, nil
	case t.idle < mostIdle && (errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN)):
		return true, nil
	case t.direct && errors.Is(err, unix.EINVAL): // the file system takes no such transfers, as it seems: it may have other reasons
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

// explain says what went wrong with t.
func (t *transfer) explain(err error) error {
	op := "read"
	if t.write {
		op = "write"
	}
	return fmt.Errorf("%s %d bytes of file %s at byte %d by %s: %w", op, t.need, t.file.name, t.off+t.done, t.q.path(), err)
}
