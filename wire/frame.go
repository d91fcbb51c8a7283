package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"

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
	out    *SegmentWriter
	prefix [FramePrefixBytes]byte
}

// NewFrameWriter returns a writer of frames.
func NewFrameWriter(w io.Writer) *FrameWriter { return &FrameWriter{out: NewSegmentWriter(w)} }

// Buffered returns the bytes of the frames that wait for Flush.
func (f *FrameWriter) Buffered() int64 { return f.out.Buffered() }

// Append adds a frame with that body and the data in order. The body and short data are copied.
// Longer data are referenced: they must not change before Flush has returned. Append may flush
// earlier frames. It returns ErrInvalid for a body of 4 GiB or more, and then adds nothing. After
// an error of the connection all calls return that error.
func (f *FrameWriter) Append(body []byte, data ...[]byte) error {
	if uint64(len(body)) > math.MaxUint32 {
		return fmt.Errorf("frame with a body of %d bytes: %w", len(body), errdefs.ErrInvalid)
	}
	var n uint64
	for _, d := range data {
		n += uint64(len(d))
	}
	prefix := f.prefix[:]
	binary.LittleEndian.PutUint32(prefix[0:], uint32(len(body)))
	binary.LittleEndian.PutUint64(prefix[8:], n)
	binary.LittleEndian.PutUint32(prefix[4:], frameSum(prefix, body))
	if err := f.out.Copy(prefix); err != nil {
		return err
	}
	if err := f.out.Copy(body); err != nil {
		return err
	}
	for _, d := range data {
		if err := f.out.Append(d); err != nil {
			return err
		}
	}
	return nil
}

// Flush writes all frames. When it returns, no data are referenced. After an error the connection
// may have any part of the frames, and is not usable.
func (f *FrameWriter) Flush() error { return f.out.Flush() }

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
