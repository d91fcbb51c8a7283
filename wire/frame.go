package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"net"

	"github.com/kvlane/kvlane/errdefs"
)

// FramePrefixBytes is the length of a frame's prefix. A frame is a prefix, a body and data, all integers little-endian:
//
//	0  u32  bytes of the body
//	4  u32  CRC-32C of the other 12 bytes of the prefix and of the body
//	8  u64  bytes of the data behind the body
//
// The data are not in the CRC: messages in the body have their checksums.
const FramePrefixBytes = 16

const (
	// copiedBytes is the length up to which data are copied into the writer's buffer. Longer data
	// are a segment of their own in a vectored write.
	copiedBytes = 4 << 10
	// writerBytes is the capacity of a writer's buffer for each flush.
	writerBytes = 64 << 10
	// readerBytes is the length of a reader's buffer. Data beyond it are read into their place.
	readerBytes = 32 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// frameSum returns the CRC of a frame.
func frameSum(prefix, body []byte) uint32 {
	sum := crc32.Update(0, castagnoli, prefix[:4])
	sum = crc32.Update(sum, castagnoli, prefix[8:FramePrefixBytes])
	return crc32.Update(sum, castagnoli, body)
}

// FrameWriter writes frames to a connection, several with one system call. It is not safe for
// concurrent use.
type FrameWriter struct {
	w        io.Writer
	vectored bool        // w writes several segments by one call
	buf      []byte      // copied bytes; never reallocated while segments refer to it
	from     int         // of buf: the start of bytes that are in no segment yet
	segments net.Buffers // referenced data and parts of buf
	write    net.Buffers // the rest of segments during Flush
	bytes    int64
	err      error
}

// NewFrameWriter returns a writer of frames. A *net.TCPConn or *net.UnixConn gets the frames of a
// Flush by one vectored write. Other connections, such as those of TLS, get a write for each
// buffer and each long piece of data.
func NewFrameWriter(w io.Writer) *FrameWriter {
	f := &FrameWriter{w: w, buf: make([]byte, 0, writerBytes)}
	switch w.(type) {
	case *net.TCPConn, *net.UnixConn:
		f.vectored = true
	}
	return f
}

// Buffered returns the bytes of the frames that wait for Flush.
func (f *FrameWriter) Buffered() int64 { return f.bytes }

// Append adds a frame with that body and the data in order. The body and short data are copied.
// Longer data are referenced: they must not change before Flush has returned. Append may flush
// earlier frames. It returns ErrInvalid for a body of 4 GiB or more, and then adds nothing. After
// an error of the connection all calls return that error.
func (f *FrameWriter) Append(body []byte, data ...[]byte) error {
	if f.err != nil {
		return f.err
	}
	if uint64(len(body)) > math.MaxUint32 {
		return fmt.Errorf("frame with a body of %d bytes: %w", len(body), errdefs.ErrInvalid)
	}
	if cap(f.buf)-len(f.buf) < FramePrefixBytes {
		if err := f.send(); err != nil {
			return err
		}
	}
	var n uint64
	for _, d := range data {
		n += uint64(len(d))
	}
	at := len(f.buf)
	f.buf = f.buf[:at+FramePrefixBytes]
	prefix := f.buf[at:] // in place: the CRC would move an array to the heap
	binary.LittleEndian.PutUint32(prefix[0:], uint32(len(body)))
	binary.LittleEndian.PutUint64(prefix[8:], n)
	binary.LittleEndian.PutUint32(prefix[4:], frameSum(prefix, body))
	f.bytes += FramePrefixBytes
	if err := f.copyIn(body); err != nil {
		return err
	}
	for _, d := range data {
		if len(d) > copiedBytes {
			f.cut()
			f.segments = append(f.segments, d)
			f.bytes += int64(len(d))
		} else if err := f.copyIn(d); err != nil {
			return err
		}
	}
	return nil
}

// copyIn copies bytes into the buffer, and sends the buffer whenever it is full.
func (f *FrameWriter) copyIn(p []byte) error {
	for len(p) > 0 {
		n := copy(f.buf[len(f.buf):cap(f.buf)], p)
		f.buf, p = f.buf[:len(f.buf)+n], p[n:]
		f.bytes += int64(n)
		if len(p) > 0 {
			if err := f.send(); err != nil {
				return err
			}
		}
	}
	return nil
}

// cut makes a segment of the copied bytes that are in none.
func (f *FrameWriter) cut() {
	if n := len(f.buf); n > f.from {
		f.segments = append(f.segments, f.buf[f.from:n:n])
		f.from = n
	}
}

// Flush writes all frames. When it returns, no data are referenced. After an error the connection
// may have any part of the frames, and is not usable.
func (f *FrameWriter) Flush() error {
	if f.err != nil || f.bytes == 0 {
		return f.err
	}
	return f.send()
}

// send writes the segments.
func (f *FrameWriter) send() error {
	f.cut()
	if f.vectored {
		f.write = f.segments
		_, f.err = f.write.WriteTo(f.w)
	} else {
		for _, p := range f.segments {
			if _, f.err = f.w.Write(p); f.err != nil {
				break
			}
		}
	}
	clear(f.segments) // so that it keeps no memory of the caller
	f.segments, f.buf, f.from, f.bytes = f.segments[:0], f.buf[:0], 0, 0
	if f.err != nil {
		f.err = fmt.Errorf("write frames: %w", f.err)
	}
	return f.err
}

// FrameReader reads frames from a connection. It is not safe for concurrent use.
type FrameReader struct {
	r          io.Reader
	maxBody    uint32
	maxData    uint64
	buf        []byte
	start, end int // of the bytes in buf that are not consumed
	prefix     [FramePrefixBytes]byte
	body       []byte // a body that is longer than buf
	left       uint64 // data bytes of the last frame that were not read
	err        error
}

// NewFrameReader returns a reader of frames from r. Frames with more bytes of body or data than
// these limits are refused, before memory is allocated for them.
func NewFrameReader(r io.Reader, maxBody uint32, maxData uint64) *FrameReader {
	return &FrameReader{r: r, maxBody: maxBody, maxData: maxData, buf: make([]byte, readerBytes)}
}

// DataLeft returns the data bytes of the last frame that ReadData has not read.
func (f *FrameReader) DataLeft() uint64 { return f.left }

// Buffered returns the bytes that are read from the connection and not yet consumed. If there are
// none, Next waits for the peer.
func (f *FrameReader) Buffered() int { return f.end - f.start }

// Next skips the data of the last frame that are left and returns the body of the next one, valid
// until the next call, and the bytes of its data. It returns io.EOF if the connection ends between
// frames and io.ErrUnexpectedEOF within one, ErrInvalid beyond the limits, and ErrCorrupt for a
// wrong CRC. After an error all calls return that error.
func (f *FrameReader) Next() (body []byte, data uint64, err error) {
	if f.err == nil {
		f.err = f.skip()
	}
	if f.err == nil {
		body, data, f.err = f.next()
	}
	if f.err != nil {
		return nil, 0, f.err
	}
	f.left = data
	return body, data, nil
}

func (f *FrameReader) next() (body []byte, data uint64, err error) {
	b, err := f.take(FramePrefixBytes, true)
	if err != nil {
		return nil, 0, err
	}
	p := f.prefix[:]
	copy(p, b) // reading the body may move it
	n := binary.LittleEndian.Uint32(p[0:])
	data = binary.LittleEndian.Uint64(p[8:])
	if n > f.maxBody || data > f.maxData {
		return nil, 0, fmt.Errorf("frame with a body of %d and data of %d bytes; the limits are %d and %d: %w", n, data, f.maxBody, f.maxData, errdefs.ErrInvalid)
	}
	if body, err = f.take(int(n), false); err != nil {
		return nil, 0, err
	}
	if sum, want := frameSum(p, body), binary.LittleEndian.Uint32(p[4:]); sum != want {
		return nil, 0, fmt.Errorf("frame with CRC %#08x, want %#08x: %w", want, sum, errdefs.ErrCorrupt)
	}
	return body, data, nil
}

// take consumes n bytes and returns them, valid until the next call. With first, no byte at all is
// io.EOF.
func (f *FrameReader) take(n int, first bool) ([]byte, error) {
	if n > len(f.buf) {
		return f.takeLong(n)
	}
	if f.end-f.start < n {
		f.end = copy(f.buf, f.buf[f.start:f.end])
		f.start = 0
		m, err := io.ReadAtLeast(f.r, f.buf[f.end:], n-f.end)
		if err != nil {
			return nil, readError(err, first && f.end+m == 0)
		}
		f.end += m
	}
	p := f.buf[f.start : f.start+n : f.start+n]
	f.start += n
	return p, nil
}

// takeLong is take of more bytes than the buffer has. The memory grows with the bytes that arrive:
// a peer that announces many and sends few costs little.
func (f *FrameReader) takeLong(n int) ([]byte, error) {
	f.body = f.body[:0]
	for len(f.body) < n {
		step := min(max(len(f.body), readerBytes), n-len(f.body))
		at := len(f.body)
		f.body = append(f.body, make([]byte, step)...)
		if err := f.fill(f.body[at:]); err != nil {
			return nil, err
		}
	}
	return f.body, nil
}

// fill reads exactly the bytes of p, those in the buffer first.
func (f *FrameReader) fill(p []byte) error {
	n := copy(p, f.buf[f.start:f.end])
	f.start += n
	if n == len(p) {
		return nil
	}
	if len(p)-n >= readerBytes/2 { // straight into place
		if _, err := io.ReadFull(f.r, p[n:]); err != nil {
			return readError(err, false)
		}
		return nil
	}
	b, err := f.take(len(p)-n, false) // with bytes of later frames
	copy(p[n:], b)
	return err
}

// readError returns an error of the connection. The end of it is io.EOF between frames only.
func readError(err error, between bool) error {
	switch {
	case errors.Is(err, io.EOF) && between:
		return io.EOF
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read frame: %w", err)
}

// ReadData fills the buffers in order with data of the last frame. It returns ErrInvalid if fewer
// data are left, and then reads nothing. After an error of the connection the buffers may have any
// part of the data, and all calls return that error. ReadData returns when it no longer touches the
// buffers.
func (f *FrameReader) ReadData(dst ...[]byte) error {
	if f.err != nil {
		return f.err
	}
	var n uint64
	for _, p := range dst {
		n += uint64(len(p))
	}
	if n > f.left {
		return fmt.Errorf("read %d bytes of data: %d are left: %w", n, f.left, errdefs.ErrInvalid)
	}
	for _, p := range dst {
		if f.err = f.fill(p); f.err != nil {
			return f.err
		}
		f.left -= uint64(len(p))
	}
	return nil
}

// skip reads the data that are left.
func (f *FrameReader) skip() error {
	for f.left > 0 {
		p, err := f.take(int(min(f.left, readerBytes)), false)
		if err != nil {
			return err
		}
		f.left -= uint64(len(p))
	}
	return nil
}
