package transfer

import (
	"bufio"
	"io"
	"time"

	"github.com/kvlane/kvlane/mem"
)

// directBytes is the minimum mean length of pieces that are read and written without a buffer, with
// one system call each. Shorter pieces go through the connection's buffer.
const directBytes = 32 << 10

// direct reports whether the pieces are long enough to bypass the buffer.
func (s *shape) direct() bool {
	return s.bytes() >= directBytes*int64(len(s.planes)*len(s.pages))
}

// headBytes is the read-ahead for the head of a request or reply that long pieces follow. Bytes
// read ahead are copied twice, so it is small.
const headBytes = 4 << 10

// bufferedConn is a connection with a read buffer.
type bufferedConn struct {
	*bufio.Reader
	conn      *pacedConn
	readAhead int // maximum number of bytes to read ahead
}

func newBufferedConn(c *pacedConn, p purpose) *bufferedConn {
	in := &bufferedConn{conn: c, readAhead: headBytes}
	in.Reader = bufio.NewReaderSize(aheadReader{in}, bufferOf(p))
	return in
}

// aheadReader reads from the connection into the buffer of a bufferedConn.
type aheadReader struct{ in *bufferedConn }

func (a aheadReader) Read(p []byte) (int, error) {
	return a.in.conn.Read(p[:min(len(p), a.in.readAhead)])
}

// body reads the bytes that follow a request or a reply.
type body struct {
	r      *bufferedConn
	n      int64 // bytes left
	direct bool  // read without the buffer
	err    error // first error of the connection
}

// body returns a reader for the next n bytes, which have shape s. It also sets the read-ahead for
// later reads.
func (in *bufferedConn) body(n int64, s *shape) *body {
	b := &body{r: in, n: n, direct: s.direct()}
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
	return b.note(n, err)
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
	return b.note(n, err)
}

func (b *body) note(n int, err error) (int, error) {
	if b.n -= int64(n); b.err == nil {
		b.err = err
	}
	return n, err
}

// skip reads and discards the remaining bytes.
func (b *body) skip() error {
	_, err := io.Copy(io.Discard, b)
	if err == nil && b.n > 0 {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// head writes the head of a request or reply. It flushes the head if long pieces in host memory
// follow. For other memory, the Mover flushes it.
func head(w *bufio.Writer, write func(io.Writer) error, s *shape, list []mem.Extent) error {
	if err := write(w); err != nil || !s.direct() || list[0].Bytes() == nil {
		return err
	}
	return w.Flush()
}
