package transfer

import (
	"bufio"
	"io"
	"time"

	"github.com/kvlane/kvlane/mem"
)

// directBytes is from which length on, in the mean, pieces are read and written where they are, each by calls of its own. Smaller ones are
// gathered in the connection's buffer.
const directBytes = 32 << 10

// direct reports whether the request's pieces are long ones.
func (s *shape) direct() bool {
	return s.bytes() >= directBytes*int64(len(s.planes)*len(s.pages))
}

// headBytes is what is read ahead for the head of a request or a reply, unless pieces behind it are small: a piece that is read ahead is copied twice.
const headBytes = 4 << 10

// inlet reads a connection ahead.
type bufferedConn struct {
	*bufio.Reader
	conn      *pacedConn
	readAhead int // bytes that are read ahead at a time
}

func newBufferedConn(c *pacedConn, p purpose) *bufferedConn {
	in := &bufferedConn{conn: c, readAhead: headBytes}
	in.Reader = bufio.NewReaderSize(aheadReader{in}, bufferOf(p))
	return in
}

// ahead is what an inlet's buffer is filled from.
type aheadReader struct{ in *bufferedConn }

func (a aheadReader) Read(p []byte) (int, error) {
	return a.in.conn.Read(p[:min(len(p), a.in.readAhead)])
}

// body is the n bytes behind a request or a reply.
type body struct {
	r      *bufferedConn
	n      int64 // bytes that are left
	direct bool  // r is not filled with them
}

// body returns the n bytes that are next, of a shape. What is read ahead later depends on how long its pieces are, too.
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

// skip reads what is left. It returns why it could not.
func (b *body) skip() error {
	_, err := io.Copy(io.Discard, b)
	if err == nil && b.n > 0 {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// head writes a request or a reply that has a body. Where that is long pieces, it begins in place; before what is staged the
// Mover sees to it.
func head(w *bufio.Writer, write func(io.Writer) error, s *shape, list []mem.Extent) error {
	if err := write(w); err != nil || !s.direct() || list[0].Bytes() == nil {
		return err
	}
	return w.Flush()
}
