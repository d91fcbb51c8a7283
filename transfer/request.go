package transfer

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/kvlane/kvlane/errdefs"
)

// A data connection carries requests and one reply to each, in order. The bytes of a write follow
// its request; the reply follows when all of them have arrived. The bytes of a read follow its
// reply, and a second reply reports whether they are valid.
//
//	request: op u8 | 0 u8 | 0 u16 | planes u32 | id u64 | segment u64 | bytes u64 | pages u32 | 0 u32 | planes | pages
//	plane:   base u64 | stride u64 | bytes u64
//	page:    u32
//	reply:   status u8 | 0 u8 | 0 u16 | text u32 | id u64 | bytes u64 | text
const (
	requestBytes = 40
	planeBytes   = 24
	pageBytes    = 4
	replyBytes   = 24

	maxPlanes = 1 << 16 // planes of one request
	maxPages  = 1 << 16
	maxPieces = 1 << 20 // maximum number of planes times pages
	maxLength = 1 << 30 // maximum length of a request in bytes
)

// Op is the direction of a task.
type Op uint8

// The operations.
const (
	Read  Op = iota + 1 // from the segment
	Write               // to the segment
)

// String returns "read" or "write".
func (o Op) String() string {
	switch o {
	case Read:
		return "read"
	case Write:
		return "write"
	}
	return fmt.Sprintf("op(%d)", uint8(o))
}

// plane is an array of pages in a segment: page p is the bytes at base + p*stride.
type plane struct{ base, stride, bytes int64 }

// shape lists the pieces of a request: all pages of the first plane, then all pages of the second,
// and so on. A list of extents is a shape whose planes have only page 0.
type shape struct {
	planes []plane
	pages  []uint32
}

var pageZero = []uint32{0}

// bytes returns the total length.
func (s *shape) bytes() (n int64) {
	for _, p := range s.planes {
		n += p.bytes * int64(len(s.pages))
	}
	return n
}

// validate returns ErrInvalid if the shape exceeds a limit or an offset overflows.
func (s *shape) validate() error {
	if len(s.planes) == 0 || len(s.planes) > maxPlanes || len(s.pages) == 0 || len(s.pages) > maxPages || len(s.planes)*len(s.pages) > maxPieces {
		return fmt.Errorf("request of %d planes and %d pages: %w", len(s.planes), len(s.pages), errdefs.ErrInvalid)
	}
	var top, total int64
	for _, p := range s.pages {
		top = max(top, int64(p))
	}
	for _, p := range s.planes {
		if p.base < 0 || p.stride < 0 || p.bytes <= 0 || p.bytes > maxLength || top > 0 && p.stride > (math.MaxInt64-maxLength)/top {
			return fmt.Errorf("plane of %d bytes at %d with stride %d: %w", p.bytes, p.base, p.stride, errdefs.ErrInvalid)
		}
		if p.base > math.MaxInt64-maxLength-top*p.stride {
			return fmt.Errorf("plane of %d bytes at %d with stride %d: %w", p.bytes, p.base, p.stride, errdefs.ErrInvalid)
		}
		if total += p.bytes * int64(len(s.pages)); total > maxLength {
			return fmt.Errorf("request of more than %d bytes: %w", maxLength, errdefs.ErrInvalid)
		}
	}
	return nil
}

// each calls f for each piece of a valid shape, until f returns an error.
func (s *shape) each(f func(off, n int64) error) error {
	for _, pl := range s.planes {
		for _, p := range s.pages {
			if err := f(pl.base+int64(p)*pl.stride, pl.bytes); err != nil {
				return err
			}
		}
	}
	return nil
}

// request is the head of a request. The bytes of a write follow it.
type request struct {
	op      Op
	id      uint64
	segment uint64
	shape   shape
}

func (q *request) write(w io.Writer) error {
	b := make([]byte, requestBytes, requestBytes+planeBytes*len(q.shape.planes)+pageBytes*len(q.shape.pages))
	b[0] = byte(q.op)
	binary.LittleEndian.PutUint32(b[4:], uint32(len(q.shape.planes)))
	binary.LittleEndian.PutUint64(b[8:], q.id)
	binary.LittleEndian.PutUint64(b[16:], q.segment)
	binary.LittleEndian.PutUint64(b[24:], uint64(q.shape.bytes()))
	binary.LittleEndian.PutUint32(b[32:], uint32(len(q.shape.pages)))
	for _, p := range q.shape.planes {
		b = binary.LittleEndian.AppendUint64(b, uint64(p.base))
		b = binary.LittleEndian.AppendUint64(b, uint64(p.stride))
		b = binary.LittleEndian.AppendUint64(b, uint64(p.bytes))
	}
	for _, p := range q.shape.pages {
		b = binary.LittleEndian.AppendUint32(b, p)
	}
	_, err := w.Write(b)
	return err
}

// read reads a request into q and reuses q's slices. It returns ErrInvalid for a malformed request;
// then the connection must be closed. Before it allocates memory, it calls take with the number of
// bytes.
func (q *request) read(r io.Reader, take func(bytes int64) error) error {
	var b [requestBytes]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return err
	}
	planes, pages := binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint32(b[32:])
	q.op, q.id, q.segment = Op(b[0]), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
	if q.op != Read && q.op != Write || b[1]|b[2]|b[3]|b[36]|b[37]|b[38]|b[39] != 0 || planes == 0 || planes > maxPlanes || pages == 0 || pages > maxPages {
		return fmt.Errorf("request of op %d, %d planes and %d pages: %w", b[0], planes, pages, errdefs.ErrInvalid)
	}
	if err := take(memoryOf(int64(planes), int64(pages))); err != nil {
		return err
	}
	q.shape.planes, q.shape.pages = q.shape.planes[:0], q.shape.pages[:0]
	var e [planeBytes]byte
	for range planes {
		if _, err := io.ReadFull(r, e[:]); err != nil {
			return noEOF(err)
		}
		q.shape.planes = append(q.shape.planes, plane{
			base: int64(binary.LittleEndian.Uint64(e[:])), stride: int64(binary.LittleEndian.Uint64(e[8:])), bytes: int64(binary.LittleEndian.Uint64(e[16:])),
		})
	}
	for range pages {
		if _, err := io.ReadFull(r, e[:pageBytes]); err != nil {
			return noEOF(err)
		}
		q.shape.pages = append(q.shape.pages, binary.LittleEndian.Uint32(e[:]))
	}
	if err := q.shape.validate(); err != nil {
		return err
	}
	if n := binary.LittleEndian.Uint64(b[24:]); n != uint64(q.shape.bytes()) {
		return fmt.Errorf("request of %d bytes announces %d: %w", q.shape.bytes(), n, errdefs.ErrInvalid)
	}
	return nil
}

// listedPieces is the maximum number of pieces that are listed at a time. listedBytes is the memory
// that one piece needs while a device copies it.
const (
	listedPieces = 1 << 14
	listedBytes  = 96
)

// memoryOf returns the approximate memory needed to serve a request, without the buffers of its
// connection.
func memoryOf(planes, pages int64) int64 {
	return 2*(planes*planeBytes+pages*pageBytes) + listedBytes*min(planes*pages, listedPieces)
}

// noEOF replaces io.EOF with io.ErrUnexpectedEOF.
func noEOF(err error) error {
	if err == io.EOF { //nolint:errorlint // io.ReadFull returns it unwrapped
		return io.ErrUnexpectedEOF
	}
	return err
}

// reply is the head of a reply. The bytes of a read follow it.
type reply struct {
	status status
	id     uint64
	bytes  int64
	text   []byte
}

func (p *reply) write(w io.Writer) error {
	b := make([]byte, replyBytes, replyBytes+len(p.text))
	b[0] = byte(p.status)
	binary.LittleEndian.PutUint32(b[4:], uint32(len(p.text)))
	binary.LittleEndian.PutUint64(b[8:], p.id)
	binary.LittleEndian.PutUint64(b[16:], uint64(p.bytes))
	_, err := w.Write(append(b, p.text...))
	return err
}

// readReply reads a reply. It returns ErrInvalid if it is malformed.
func readReply(r io.Reader) (p reply, err error) {
	var b [replyBytes]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return p, err
	}
	text := binary.LittleEndian.Uint32(b[4:])
	p = reply{status: status(b[0]), id: binary.LittleEndian.Uint64(b[8:]), bytes: int64(binary.LittleEndian.Uint64(b[16:]))}
	if p.status == 0 || p.status >= statuses || b[1]|b[2]|b[3] != 0 || text > maxText || p.bytes < 0 || p.bytes > maxLength ||
		p.status == statusOK && text != 0 {
		return reply{}, fmt.Errorf("reply of status %d, %d bytes of text and %d bytes: %w", b[0], text, p.bytes, errdefs.ErrInvalid)
	}
	p.text = make([]byte, text)
	_, err = io.ReadFull(r, p.text)
	return p, err
}
