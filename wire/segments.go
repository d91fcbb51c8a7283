package wire

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
)

const (
	// copiedBytes is the length up to which bytes are copied into the writer's buffer. Longer bytes
	// are a segment of their own in a vectored write.
	copiedBytes = 2 << 10
	// writerBytes is the capacity of a writer's buffer for each flush.
	writerBytes = 64 << 10
)

// writerMemory has buffers of writers. Writers without bytes to write have none.
var writerMemory = sync.Pool{New: func() any { return new([writerBytes]byte) }}

// SegmentWriter collects bytes for a connection and writes many segments by one system call. It is
// not safe for concurrent use.
type SegmentWriter struct {
	w        io.Writer
	vectored bool // w writes several segments by one call
	memory   *[writerBytes]byte
	buf      []byte      // copied bytes, in memory
	from     int         // of buf: the start of bytes that are in no segment yet
	segments net.Buffers // referenced bytes and parts of buf
	write    net.Buffers // the rest of segments during a flush
	bytes    int64
	err      error
}

// NewSegmentWriter returns a writer to w. A *net.TCPConn or *net.UnixConn gets the segments of a
// Flush by one vectored write. Other connections, such as those of TLS, get a write for each
// buffer and each long segment.
func NewSegmentWriter(w io.Writer) *SegmentWriter {
	s := &SegmentWriter{w: w}
	switch w.(type) {
	case *net.TCPConn, *net.UnixConn:
		s.vectored = true
	}
	return s
}

// Buffered returns the bytes that wait for Flush.
func (s *SegmentWriter) Buffered() int64 { return s.bytes }

// Append adds bytes. Up to 2 KiB are copied. More are referenced: they must not change before Flush
// has returned. Append may write earlier bytes. After an error of the connection all calls return
// that error.
func (s *SegmentWriter) Append(p []byte) error {
	if len(p) <= copiedBytes {
		return s.Copy(p)
	}
	if s.err != nil {
		return s.err
	}
	s.cut()
	s.segments = append(s.segments, p)
	s.bytes += int64(len(p))
	return nil
}

// Copy adds a copy of p. It writes the collected bytes whenever the buffer is full.
func (s *SegmentWriter) Copy(p []byte) error {
	if s.err != nil {
		return s.err
	}
	for len(p) > 0 {
		if s.memory == nil {
			s.memory, _ = writerMemory.Get().(*[writerBytes]byte)
			s.buf = s.memory[:0]
		}
		n := copy(s.buf[len(s.buf):cap(s.buf)], p)
		s.buf, p = s.buf[:len(s.buf)+n], p[n:]
		s.bytes += int64(n)
		if len(p) > 0 {
			if err := s.send(); err != nil {
				return err
			}
		}
	}
	return nil
}

// cut makes a segment of the copied bytes that are in none.
func (s *SegmentWriter) cut() {
	if n := len(s.buf); n > s.from {
		s.segments = append(s.segments, s.buf[s.from:n:n])
		s.from = n
	}
}

// Flush writes all bytes. When it returns, no bytes are referenced. After an error the connection
// may have any part of them, and is not usable.
func (s *SegmentWriter) Flush() error {
	if s.err != nil || s.bytes == 0 {
		return s.err
	}
	return s.send()
}

// Vectored reports whether a flush is one vectored write.
func (s *SegmentWriter) Vectored() bool { return s.vectored }

// FlushSoon is like Flush for a vectored writer. If the write deadline of the connection passes, it
// returns os.ErrDeadlineExceeded, and the bytes stay referenced: the next call must be Flush, which
// writes the rest.
func (s *SegmentWriter) FlushSoon() error {
	if s.err != nil || s.bytes == 0 {
		return s.err
	}
	s.cut()
	s.write = s.segments
	_, err := s.write.WriteTo(s.w) // removes the written bytes from segments too
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return os.ErrDeadlineExceeded
	}
	s.err = err
	return s.end()
}

// send writes the segments.
func (s *SegmentWriter) send() error {
	s.cut()
	if s.vectored {
		s.write = s.segments
		_, s.err = s.write.WriteTo(s.w)
	} else {
		for _, p := range s.segments {
			if _, s.err = s.w.Write(p); s.err != nil {
				break
			}
		}
	}
	return s.end()
}

// end releases the memory after a flush.
func (s *SegmentWriter) end() error {
	s.write = nil
	clear(s.segments) // so that it keeps no memory of the caller
	s.segments, s.from, s.bytes = s.segments[:0], 0, 0
	if s.memory != nil {
		writerMemory.Put(s.memory)
		s.memory, s.buf = nil, nil
	}
	if s.err != nil {
		s.err = fmt.Errorf("write to the connection: %w", s.err)
	}
	return s.err
}
