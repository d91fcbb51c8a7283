// Package frame reads and writes the frames of baidu_std: a magic, two lengths, a meta, and data.
//
//	0   "PRPC" or "STRM"
//	4   u32, big-endian: bytes of meta and data
//	8   u32, big-endian: bytes of the meta
//	12  the meta, a protobuf message, then the data
package frame

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/wire"
)

// HeaderBytes is the length of the header.
const HeaderBytes = 12

// Kind is the kind of a frame.
type Kind uint32

// The kinds. The values are the magic numbers, big-endian.
const (
	Message Kind = 0x50525043 // "PRPC": a request or a response
	Stream  Kind = 0x5354524d // "STRM": a frame of a stream
)

// Header is the start of a frame.
type Header struct {
	Kind Kind
	Body int64 // bytes of meta and data
	Meta int64
}

// Parse decodes the first HeaderBytes of b. It returns ErrMismatch for an unknown magic and
// ErrInvalid for a meta that is longer than the body.
func Parse(b []byte) (Header, error) {
	h := Header{Kind(binary.BigEndian.Uint32(b)), int64(binary.BigEndian.Uint32(b[4:])), int64(binary.BigEndian.Uint32(b[8:]))}
	if h.Kind != Message && h.Kind != Stream {
		return h, fmt.Errorf("frame starts with %q, not \"PRPC\" or \"STRM\": %w", b[:4], errdefs.ErrMismatch)
	}
	if h.Meta > h.Body {
		return h, fmt.Errorf("frame of %d bytes with a meta of %d: %w", h.Body, h.Meta, errdefs.ErrInvalid)
	}
	return h, nil
}

// Put writes the header to the first HeaderBytes of b. It returns ErrInvalid for a body of 4 GiB or
// more.
func (h Header) Put(b []byte) error {
	if h.Body > math.MaxUint32 {
		return fmt.Errorf("frame of %d bytes: %w", h.Body, errdefs.ErrInvalid)
	}
	binary.BigEndian.PutUint32(b, uint32(h.Kind))
	binary.BigEndian.PutUint32(b[4:], uint32(h.Body))
	binary.BigEndian.PutUint32(b[8:], uint32(h.Meta))
	return nil
}

// Limits bound the frames of a peer.
type Limits struct {
	Body, Meta int64         // bytes
	Stall      time.Duration // of the next byte and the next 16 KiB of a started frame
	// Whole bounds the time of a frame as a whole: Stall, and its length at wire.PaceRate.
	Whole bool
}

// Reader reads frames. It is not safe for concurrent use.
type Reader struct {
	limits Limits
	source *source
	in     *bufio.Reader
	body   int64 // bytes of the current frame
	left   int64 // data of the current frame that were not read
}

const (
	// readerBytes is the initial length of a reader's buffer. Longer data are read into their place.
	readerBytes = 4 << 10
	// maxReaderBytes is the length of the buffer of a reader that gets many frames of up to
	// shortBytes at a time.
	maxReaderBytes = 64 << 10
	shortBytes     = 16 << 10
)

// NewReader returns a reader of frames from a connection.
func NewReader(c net.Conn, l Limits) *Reader {
	s := &source{conn: c, limit: l.Stall, pace: wire.NewPace(l.Stall)}
	return &Reader{limits: l, source: s, in: bufio.NewReaderSize(s, readerBytes)}
}

// Next skips unread data of the current frame and waits for the next one, without a time limit
// until its first byte arrives. The meta is valid until the next call of any method.
//
// It returns io.EOF if the connection ends between frames. After any error the connection is not
// usable: ErrMismatch for an unknown magic, ErrInvalid for wrong lengths, ErrNoSpace for a frame
// over the limits, io.ErrUnexpectedEOF or the connection's error.
func (r *Reader) Next() (Header, []byte, error) {
	if err := r.Skip(); err != nil {
		return Header{}, nil, err
	}
	r.source.inFrame = false
	if r.in.Buffered() == 0 {
		runtime.Gosched() // goroutines that handle earlier frames go first
		if n := r.in.Size(); r.source.most >= n/2 && r.body < shortBytes && n < maxReaderBytes {
			r.in = bufio.NewReaderSize(r.source, 2*n)
		}
	}
	if _, err := r.in.Peek(1); err != nil {
		return Header{}, nil, err
	}
	r.source.begin()
	b, err := r.in.Peek(HeaderBytes)
	if err != nil {
		return Header{}, nil, inFrame(err)
	}
	h, err := Parse(b)
	switch {
	case err != nil:
		return h, nil, err
	case h.Body > r.limits.Body:
		return h, nil, fmt.Errorf("frame of %d bytes, of at most %d: %w", h.Body, r.limits.Body, errdefs.ErrNoSpace)
	case h.Meta > r.limits.Meta:
		return h, nil, fmt.Errorf("frame with a meta of %d bytes, of at most %d: %w", h.Meta, r.limits.Meta, errdefs.ErrNoSpace)
	}
	if r.limits.Whole {
		r.source.pace.Bound(h.Body)
	}
	_, _ = r.in.Discard(HeaderBytes) // they are in the buffer
	r.body, r.left = h.Body, h.Body-h.Meta
	if h.Meta <= int64(r.in.Size()) {
		if b, err = r.in.Peek(int(h.Meta)); err != nil {
			return h, nil, inFrame(err)
		}
		_, _ = r.in.Discard(len(b))
		return h, b, nil
	}
	meta := make([]byte, 0, readerBytes)
	for int64(len(meta)) < h.Meta { // allocated as the bytes arrive
		n := min(int(h.Meta)-len(meta), max(len(meta), readerBytes))
		meta = append(meta, make([]byte, n)...)
		if _, err := io.ReadFull(r.in, meta[len(meta)-n:]); err != nil {
			return h, nil, inFrame(err)
		}
	}
	return h, meta, nil
}

// Left returns the number of data bytes of the frame that were not read.
func (r *Reader) Left() int64 { return r.left }

// ReadChain reads the next n data bytes into pooled blocks. The memory grows as the bytes arrive.
// It returns ErrInvalid if the frame has fewer, and the errors of Next.
func (r *Reader) ReadChain(n int64) (*chain.Chain, error) {
	if n < 0 || n > r.left {
		return nil, fmt.Errorf("read %d of the %d bytes that a frame has left: %w", n, r.left, errdefs.ErrInvalid)
	}
	c := new(chain.Chain)
	for n > 0 {
		b := chain.Get(int(min(n, max(1<<20, c.Len()))))
		p := b.Memory()[:min(n, b.Len())]
		if _, err := io.ReadFull(r.in, p); err != nil {
			b.Release()
			c.Release()
			return nil, inFrame(err)
		}
		c.AppendBlock(b, int64(len(p)))
		r.left -= int64(len(p))
		n -= int64(len(p))
	}
	return c, nil
}

// ReadHost is ReadChain for bytes that the CPU must reach.
func (r *Reader) ReadHost(n int64) (*chain.Chain, error) { return r.ReadChain(n) }

// Skip reads the rest of the frame and drops it.
func (r *Reader) Skip() error {
	for r.left > 0 {
		n, err := r.in.Discard(int(min(r.left, 1<<30)))
		r.left -= int64(n)
		if err != nil {
			return inFrame(err)
		}
	}
	return nil
}

// inFrame returns the error for a connection that ends within a frame.
func inFrame(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("read frame: %w", io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("read frame: %w", err)
}

// source reads from a connection. Within a frame each read has a deadline.
type source struct {
	conn    net.Conn
	limit   time.Duration
	pace    *wire.Pace
	inFrame bool
	until   time.Time // deadline of the connection; it may remain after a frame
	most    int       // bytes of the longest read
}

func (s *source) begin() {
	s.inFrame = true
	s.pace.Begin()
}

func (s *source) Read(p []byte) (int, error) {
	if !s.inFrame {
		n, err := s.conn.Read(p)
		if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && !s.until.IsZero() {
			s.until = time.Time{}
			_ = s.conn.SetReadDeadline(s.until) // fails on closed connections, as the read does
			n, err = s.conn.Read(p)
		}
		s.most = max(s.most, n)
		return n, err
	}
	began := time.Now()
	if s.until.Sub(began) < s.limit-s.limit/16 { // a later deadline saves a change of a timer
		s.until = began.Add(s.limit)
		_ = s.conn.SetReadDeadline(s.until) // fails on closed connections, as the read does
	}
	n, err := s.conn.Read(p)
	if err == nil {
		err = s.pace.Moved(n, began)
	}
	return n, err
}
