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

// FramePrefixBytes is the length of a frame's prefix. A frame is a prefix, a body and data, all
// integers little-endian:
//
//	0  u32  bytes of the body
//	4  u32  CRC-32C of the other 12 bytes of the prefix and of the body
//	8  u64  bytes of the data after the body
//
// The CRC does not cover the data. Messages in the body contain their checksums.
const FramePrefixBytes = 16

const (
	// readerBytes is the length of a reader's buffer.
	readerBytes = 128 << 10
	// directBytes is the length from which data are read into their place.
	directBytes = 16 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// frameSum returns the CRC of a frame.
func frameSum(prefix, body []byte) uint32 {
	sum := crc32.Update(0, castagnoli, prefix[:4])
	sum = crc32.Update(sum, castagnoli, prefix[8:FramePrefixBytes])
	return crc32.Update(sum, castagnoli, body)
}

// FrameWriter writes frames to a connection, and may send several with one system call. It is not
// safe for concurrent use.
type FrameWriter struct {
	out    *SegmentWriter
	prefix [FramePrefixBytes]byte
}

// NewFrameWriter returns a writer of frames.
func NewFrameWriter(w io.Writer) *FrameWriter { return &FrameWriter{out: NewSegmentWriter(w)} }

// Buffered returns the bytes of the frames that wait for Flush.
func (f *FrameWriter) Buffered() int64 { return f.out.Buffered() }

// Append adds a frame with that body and the given pieces of data. The body and short data are
// copied. Longer data are referenced: they must not change before Flush has returned. Append may
// flush earlier frames. It returns ErrInvalid for a body of 4 GiB or more, and then adds nothing.
// After an error of the connection all calls return that error.
func (f *FrameWriter) Append(body []byte, data ...[]byte) error {
	var n uint64
	for _, d := range data {
		n += uint64(len(d))
	}
	if err := f.AppendHead(body, n); err != nil {
		return err
	}
	for _, d := range data {
		if err := f.AppendData(d); err != nil {
			return err
		}
	}
	return nil
}

// AppendHead adds a frame with that body. The caller adds its data, of that many bytes, by calls of
// AppendData, and may call Flush between them. The errors are those of Append.
func (f *FrameWriter) AppendHead(body []byte, data uint64) error {
	if uint64(len(body)) > math.MaxUint32 {
		return fmt.Errorf("frame with a body of %d bytes: %w", len(body), errdefs.ErrInvalid)
	}
	prefix := f.prefix[:]
	binary.LittleEndian.PutUint32(prefix[0:], uint32(len(body)))
	binary.LittleEndian.PutUint64(prefix[8:], data)
	binary.LittleEndian.PutUint32(prefix[4:], frameSum(prefix, body))
	if err := f.out.Copy(prefix); err != nil {
		return err
	}
	return f.out.Copy(body)
}

// AppendData adds data to the last frame. Long data are referenced, as by Append.
func (f *FrameWriter) AppendData(d []byte) error { return f.out.Append(d) }

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
	left       uint64 // data bytes of the last frame that were not read
	err        error
}

// NewFrameReader returns a reader of frames from r. It refuses frames whose body or data exceed
// these limits before it allocates memory for them.
func NewFrameReader(r io.Reader, maxBody uint32, maxData uint64) *FrameReader {
	return &FrameReader{r: r, maxBody: maxBody, maxData: maxData, buf: make([]byte, readerBytes)}
}

// DataLeft returns the number of data bytes of the last frame that were not read.
func (f *FrameReader) DataLeft() uint64 { return f.left }

// Buffered returns the number of bytes that were read from the connection but not yet consumed. If
// it is zero, Next waits for the peer.
func (f *FrameReader) Buffered() int { return f.end - f.start }

// Next skips unread data of the last frame. It returns the body of the next frame, which is valid
// until the next call, and the number of its data bytes. It returns io.EOF if the connection ends
// between frames and io.ErrUnexpectedEOF if it ends within one, ErrInvalid if a limit is exceeded,
// and ErrCorrupt for a wrong CRC. After an error all calls return that error.
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

// take consumes n bytes and returns them. They are valid until the next call. If first is set and
// the connection ends before the first byte, it returns io.EOF.
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

// takeLong implements take for more bytes than the buffer holds. It allocates memory as bytes
// arrive, so that a peer that announces many bytes and sends few costs little memory. The reader
// does not keep the memory.
func (f *FrameReader) takeLong(n int) ([]byte, error) {
	var body []byte
	for len(body) < n {
		step := min(max(len(body), readerBytes), n-len(body))
		at := len(body)
		body = append(body, make([]byte, step)...)
		if err := f.fill(body[at:]); err != nil {
			return nil, err
		}
	}
	return body, nil
}

// LimitBody replaces the limit of the bodies of further frames.
func (f *FrameReader) LimitBody(n uint32) { f.maxBody = n }

// fill reads exactly len(p) bytes, starting with those in the buffer.
func (f *FrameReader) fill(p []byte) error {
	n := copy(p, f.buf[f.start:f.end])
	f.start += n
	if n == len(p) {
		return nil
	}
	if len(p)-n >= directBytes { // read directly into p
		if _, err := io.ReadFull(f.r, p[n:]); err != nil {
			return readError(err, false)
		}
		return nil
	}
	b, err := f.take(len(p)-n, false) // reads bytes of later frames too
	copy(p[n:], b)
	return err
}

// readError converts an error of the connection. The end of the connection is io.EOF between
// frames, otherwise io.ErrUnexpectedEOF.
func readError(err error, between bool) error {
	switch {
	case errors.Is(err, io.EOF) && between:
		return io.EOF
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read frame: %w", err)
}

// ReadData fills the buffers in order with data of the last frame. It returns ErrInvalid if there
// is not enough unread data, and then reads nothing. After an error of the connection the buffers
// may contain any part of the data, and all calls return that error. After ReadData has returned it
// does not access the buffers.
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

// skip reads and discards unread data.
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
