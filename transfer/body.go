package transfer

import (
	"bufio"
	"io"
	"time"

	"github.com/kvlane/kvlane/mem"
)

// directBytes is the mean length from which pieces are read and written in place, each with its own
// system call. Shorter ones go through the connection's buffer.
const directBytes = 32 << 10

// direct reports whether the pieces are long enough to be read and written in place.
func (s *shape) direct() bool {
	return s.bytes() >= directBytes*int64(len(s.planes)*len(s.pages))
}

// headBytes is the number of bytes read ahead for the head of a request or reply that long pieces
// follow. Bytes that are read ahead are copied twice.
const headBytes = 4 << 10

// bufferedConn reads a connection ahead.
type bufferedConn struct {
	*bufio.Reader
	conn      *pacedConn
	readAhead int // number of bytes to read ahead
}

func newBufferedConn(c *pacedConn, p purpose) *bufferedConn {
	in := &bufferedConn{conn: c, readAhead: headBytes}
	in.Reader = bufio.NewReaderSize(aheadReader{in}, bufferOf(p))
	return in
}

// aheadReader fills the buffer of a bufferedConn.
type aheadReader struct{ in *bufferedConn }

func (a aheadReader) Read(p []byte) (int, error) {
	return a.in.conn.Read(p[:min(len(p), a.in.readAhead)])
}

// body reads the bytes behind a request or a reply.
type body struct {
	r      *bufferedConn
	n      int64 // bytes left
	direct bool  // do not read them ahead
}

// body returns a reader of the next n bytes, which have that shape. It also sets how far later
// reads go ahead.
func (in *bufferedConn) body(n int64, s *shape) *body {
	b := &body{in, n, s.direct()}
	if in.readAhead = dataBuffer; b.direct {
		in.readAhead = headBytes
	}
	return b
}

func (b *body) Read(p []byte) (n int, err error) {
	if b.n <= 0 {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), b.n)]
	if b.direct && b.r.Buffered() == 0 {
		n, err = b.r.conn.Read(p)
	} else {
		n, err = b.r.Read(p)
	}
	b.n -= int64(n)
	return n, err
}

// ReadBy implements wire.BriefReader.
func (b *body) ReadBy(p []byte, by time.Time) (n int, err error) {
	if b.n <= 0 {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), b.n)]
	if b.r.Buffered() == 0 {
		n, err = b.r.conn.ReadBy(p, by)
	} else {
		n, err = b.r.Read(p)
	}
	b.n -= int64(n)
	return n, err
}

// skip reads and discards the rest.
func (b *body) skip() error {
	_, err := io.Copy(io.Discard, b)
	if err == nil && b.n > 0 {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// head writes the head of a request or reply. It flushes it if long pieces in host memory follow.
// For staged memory the Mover flushes.
func head(w *bufio.Writer, write func(io.Writer) error, s *shape, list []mem.Extent) error {
	if err := write(w); err != nil || !s.direct() || list[0].Bytes() == nil {
		return err
	}
	return w.Flush()
}
