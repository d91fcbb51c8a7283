package endpoint

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/internal/frame"
	"github.com/kvlane/kvlane/wire"
)

// Reader reads frames from an endpoint that receives into host memory. It has the methods of
// frame.Reader, and returns chains of the blocks that the NIC has written. It is not safe for
// concurrent use.
type Reader struct {
	input
}

// NewReader returns a reader of frames. It is the only caller of Receive.
func NewReader(e *Endpoint, l frame.Limits) *Reader {
	return &Reader{input: input{e: e, limits: l, pace: wire.NewPace(l.Stall)}}
}

// Next is frame.Reader.Next.
func (r *Reader) Next() (frame.Header, []byte, error) {
	if err := r.begin(); err != nil {
		return frame.Header{}, nil, err
	}
	if err := r.fill(frame.HeaderBytes); err != nil {
		return frame.Header{}, nil, err
	}
	var b [frame.HeaderBytes]byte
	if _, err := r.pending.CopyTo(b[:], 0); err != nil {
		return frame.Header{}, nil, err
	}
	h, err := r.header(b[:])
	if err != nil {
		return h, nil, err
	}
	if err := r.fill(frame.HeaderBytes + h.Meta); err != nil {
		return h, nil, err
	}
	r.pending.Cut(frame.HeaderBytes).Release()
	meta := r.pending.Cut(h.Meta)
	defer meta.Release()
	p, err := meta.Bytes()
	return h, p, err
}

// ReadHost is ReadChain.
func (r *Reader) ReadHost(n int64) (*chain.Chain, error) { return r.ReadChain(n) }

// input has the received bytes of an endpoint, from the current position.
type input struct {
	e        *Endpoint
	limits   frame.Limits
	pace     *wire.Pace
	pending  chain.Chain
	received int64 // bytes that have arrived
	left     int64 // data of the current frame that were not read
}

// begin skips the rest of the current frame, and waits without a limit for the first byte of the
// next one. It returns io.EOF if the connection ends before.
func (r *input) begin() error {
	if err := r.Skip(); err != nil {
		return err
	}
	if r.pending.Len() == 0 {
		if err := r.receive(0); err != nil {
			return err
		}
	}
	r.pace.Begin()
	return nil
}

// receive waits for bytes.
func (r *input) receive(limit time.Duration) error {
	had := r.pending.Len()
	err := r.e.Receive(&r.pending, limit)
	r.received += r.pending.Len() - had
	return err
}

// fill waits until n bytes have arrived.
func (r *input) fill(n int64) error {
	for r.pending.Len() < n {
		began, had := time.Now(), r.pending.Len()
		err := r.receive(r.limits.Stall)
		if err == nil {
			err = r.pace.Moved(int(r.pending.Len()-had), began)
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("read frame: %w", err)
		}
	}
	return nil
}

// header decodes a header, and begins its frame.
func (r *input) header(b []byte) (frame.Header, error) {
	h, err := frame.Parse(b)
	switch {
	case err != nil:
		return h, err
	case h.Body > r.limits.Body:
		return h, fmt.Errorf("frame of %d bytes, of at most %d: %w", h.Body, r.limits.Body, errdefs.ErrNoSpace)
	case h.Meta > r.limits.Meta:
		return h, fmt.Errorf("frame with a meta of %d bytes, of at most %d: %w", h.Meta, r.limits.Meta, errdefs.ErrNoSpace)
	}
	if r.limits.Whole {
		r.pace.Bound(h.Body)
	}
	r.left = h.Body - h.Meta
	return h, nil
}

// Left returns the number of data bytes of the frame that were not read.
func (r *input) Left() int64 { return r.left }

// ReadChain returns the next n data bytes in the blocks that they arrived in. It returns ErrInvalid
// if the frame has fewer, and the errors of Next.
func (r *input) ReadChain(n int64) (*chain.Chain, error) {
	if n < 0 || n > r.left {
		return nil, fmt.Errorf("read %d of the %d bytes that a frame has left: %w", n, r.left, errdefs.ErrInvalid)
	}
	if err := r.fill(n); err != nil {
		return nil, err
	}
	r.left -= n
	return r.pending.Cut(n), nil
}

// Skip drops the rest of the frame.
func (r *input) Skip() error {
	for r.left > 0 {
		if err := r.fill(1); err != nil {
			return err
		}
		n := min(r.left, r.pending.Len())
		r.pending.Cut(n).Release()
		r.left -= n
	}
	return nil
}

// Close releases bytes that were received but not read.
func (r *input) Close() {
	r.pending.Release()
}
