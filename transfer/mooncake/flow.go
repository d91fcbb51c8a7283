package mooncake

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/kvlane/kvlane/wire"
)

// Lengths of reads and writes.
const (
	bufferBytes = 32 << 10 // size of the buffer for small writes
	// aheadBytes is the length of the read-ahead buffer. Bytes in it are copied a second time, so a
	// larger value would reduce the throughput of 64 KiB blocks by a third.
	aheadBytes = 4 << 10
	writeBytes = 1 << 20 // maximum length of a write with one deadline
)

// flow is a connection whose reads and writes fail if no byte arrives or is sent for some time. One
// goroutine may read and another one write.
type flow struct {
	net.Conn
	bound           time.Duration // maximum time without a byte for reads; stall: for writes
	stall           time.Duration
	readBy, writeBy time.Time  // the current deadlines
	broken          error      // first connection error of the reading goroutine
	pace            *wire.Pace // minimum rate of the current request; nil: none
}

func newFlow(c net.Conn, stall time.Duration) *flow {
	return &flow{Conn: c, bound: stall, stall: stall}
}

// limit changes the time limit of reads. It must be called by the reading goroutine.
func (f *flow) limit(bound time.Duration) {
	f.bound, f.readBy = bound, time.Time{}
}

// due returns the deadline for an operation that begins now, and whether it must be set. Setting a
// deadline is expensive, so small changes are skipped.
func due(set time.Time, bound time.Duration) (time.Time, bool) {
	by := time.Now().Add(bound)
	return by, by.Sub(set) > bound/8
}

// Read implements io.Reader.
func (f *flow) Read(p []byte) (int, error) {
	if by, set := due(f.readBy, f.bound); set {
		f.readBy = by
		if err := f.SetReadDeadline(by); err != nil {
			f.broken = err
			return 0, err
		}
	}
	began := time.Now()
	n, err := f.Conn.Read(p)
	if err == nil {
		err = f.tooSlow(n, began)
	}
	if err != nil {
		f.broken = err
	}
	return n, err
}

// tooSlow returns an error if the peer is slower than the pace of the current request. It moved n
// bytes since began.
func (f *flow) tooSlow(n int, began time.Time) error {
	if f.pace == nil {
		return nil
	}
	return f.pace.Moved(n, began)
}

// ReadBy implements wire.BriefReader.
func (f *flow) ReadBy(p []byte, by time.Time) (int, error) {
	f.readBy = by
	err := f.SetReadDeadline(by)
	if err != nil {
		f.broken = err
		return 0, err
	}
	began := time.Now()
	n, err := f.Conn.Read(p)
	if err == nil || isTimeout(err) {
		err = f.tooSlow(n, began)
	}
	if err != nil {
		f.broken = err
	}
	return n, err
}

// Write implements io.Writer.
func (f *flow) Write(p []byte) (int, error) { return f.writeAll(nil, p) }

// writeAll writes head and p. If they are short, it uses one system call. It returns the number of
// bytes of p that were written.
func (f *flow) writeAll(head, p []byte) (int, error) {
	done := 0
	for done < len(p) || len(head) > 0 {
		if by, set := due(f.writeBy, f.stall); set {
			f.writeBy = by
			if err := f.SetWriteDeadline(by); err != nil {
				return done, err
			}
		}
		began := time.Now()
		part := p[done:min(len(p), done+writeBytes)]
		var n int64
		var err error
		if len(head) > 0 {
			both := net.Buffers{head, part}
			n, err = both.WriteTo(f.Conn)
			n = max(0, n-int64(len(head)))
			head = nil
		} else {
			var one int
			one, err = f.Conn.Write(part)
			n = int64(one)
		}
		done += int(n)
		if err == nil {
			err = f.tooSlow(int(n), began)
		}
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// reset resets the connection. The peer gets an error and discards data in flight.
func (f *flow) reset() {
	if c, ok := f.Conn.(*net.TCPConn); ok {
		_ = c.SetLinger(0) // the Close below works without it
	}
	_ = f.Close() // the connection is unusable in any case
}

// bufferedWriter is a writer for a flow that buffers small writes. Large writes bypass the buffer.
type bufferedWriter struct {
	flow *flow
	buf  []byte
}

func newBufferedWriter(f *flow) *bufferedWriter {
	return &bufferedWriter{flow: f, buf: make([]byte, 0, bufferBytes)}
}

// Write implements io.Writer.
func (g *bufferedWriter) Write(p []byte) (int, error) {
	if len(g.buf)+len(p) <= cap(g.buf) {
		g.buf = append(g.buf, p...)
		return len(p), nil
	}
	n, err := g.flow.writeAll(g.buf, p)
	g.buf = g.buf[:0]
	return n, err
}

// Ready implements wire.BriefWriter.
func (g *bufferedWriter) Ready(int64) bool { return true }

// WriteBy implements wire.BriefWriter.
func (g *bufferedWriter) WriteBy(p []byte, by time.Time) (int, error) {
	if len(g.buf)+len(p) <= cap(g.buf) {
		return g.Write(p)
	}
	g.flow.writeBy = by
	if err := g.flow.SetWriteDeadline(by); err != nil {
		return 0, err
	}
	began := time.Now()
	both := net.Buffers{g.buf, p}
	wrote, err := both.WriteTo(g.flow.Conn)
	if err == nil || isTimeout(err) {
		err = g.flow.tooSlow(int(wrote), began)
	}
	n := min(int(wrote), len(g.buf))
	g.buf = append(g.buf[:0], g.buf[n:]...)
	return int(wrote) - n, err
}

// Flush implements wire.BriefWriter.
func (g *bufferedWriter) Flush() error {
	if len(g.buf) == 0 {
		return nil
	}
	_, err := g.flow.writeAll(g.buf, nil)
	g.buf = g.buf[:0]
	return err
}

// flushingReader flushes pending writes before each read. Otherwise both peers could wait for each
// other.
type flushingReader struct{ out *bufferedWriter }

// Read implements io.Reader.
func (f flushingReader) Read(p []byte) (int, error) {
	if err := f.out.Flush(); err != nil {
		return 0, err
	}
	return f.out.flow.Read(p)
}

// ReadBy implements wire.BriefReader.
func (f flushingReader) ReadBy(p []byte, by time.Time) (int, error) {
	if err := f.out.Flush(); err != nil {
		return 0, err
	}
	return f.out.flow.ReadBy(p, by)
}

// bufferedConn is a connection with a small read-ahead.
type bufferedConn struct {
	*bufio.Reader
	conn wire.BriefReader
}

func newBufferedConn(c wire.BriefReader) *bufferedConn {
	return &bufferedConn{bufio.NewReaderSize(c, aheadBytes), c}
}

// ReadBy implements wire.BriefReader.
func (i *bufferedConn) ReadBy(p []byte, by time.Time) (int, error) {
	if i.Buffered() > 0 {
		return i.Read(p)
	}
	return i.conn.ReadBy(p, by)
}

// isTimeout reports whether err means that a deadline has passed.
func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// stalled adds the time without progress to a timeout error and returns other errors unchanged.
func stalled(err error, after time.Duration) error {
	if isTimeout(err) {
		return fmt.Errorf("no progress for %v: %w", after, err)
	}
	return err
}
