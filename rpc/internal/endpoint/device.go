package endpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/internal/frame"
	"github.com/kvlane/kvlane/wire"
)

const (
	// PrefetchBytes is the maximum length of the start of a message that is copied to the host at
	// once.
	PrefetchBytes = 512
	// maxMemoryWait bounds the wait for host memory of a message.
	maxMemoryWait = time.Second
)

// ErrHostMemory is returned by ReadHost if no host memory becomes free. The frame can be skipped.
var ErrHostMemory = errors.New("no host memory for a message")

// Device is the device that the blocks of a connection are in. It is safe for concurrent use.
type Device interface {
	chain.Copier
	// Flush makes writes of the NIC visible to the device and to copies from it.
	Flush() error
}

// DeviceReader reads frames from an endpoint that receives into device memory. Only the start of a
// message, its meta and its data for ReadHost are copied to the host: the start once for each
// message, and meta and data only if the start does not contain them. ReadChain copies nothing. A
// DeviceReader is not safe for concurrent use.
type DeviceReader struct {
	input
	dev         Device
	heads, host *mem.Arena // pinned memory for starts of messages, and for long metas and data

	head  mem.ArenaBlock
	has   bool  // head is acquired
	at    int64 // position in head
	have  int64 // bytes of head from at that are the next ones of pending
	fresh int64 // value of received at the last flush
}

// NewDeviceReader returns a reader of frames. It is the only caller of Receive.
func NewDeviceReader(e *Endpoint, l frame.Limits, dev Device, heads, host *mem.Arena) *DeviceReader {
	return &DeviceReader{input: input{e: e, limits: l, pace: wire.NewPace(l.Stall)}, dev: dev, heads: heads, host: host}
}

// Next is frame.Reader.Next. It returns ErrMismatch for frames that are not messages.
func (r *DeviceReader) Next() (frame.Header, []byte, error) {
	if err := r.begin(); err != nil {
		return frame.Header{}, nil, err
	}
	if err := r.fill(frame.HeaderBytes); err != nil {
		return frame.Header{}, nil, err
	}
	b, err := r.prefetch()
	if err != nil {
		return frame.Header{}, nil, err
	}
	h, err := r.header(b)
	if err == nil && h.Kind != frame.Message {
		err = fmt.Errorf("frame %#x on a connection of device memory: %w", uint32(h.Kind), errdefs.ErrMismatch)
	}
	if err != nil {
		return h, nil, err
	}
	r.pending.Cut(frame.HeaderBytes).Release()
	r.advance(frame.HeaderBytes)
	meta := b[frame.HeaderBytes:]
	if int64(len(meta)) >= h.Meta {
		r.pending.Cut(h.Meta).Release()
		r.advance(h.Meta)
		return h, meta[:h.Meta], nil
	}
	c, err := r.copy(h.Meta)
	if err != nil {
		return h, nil, err
	}
	defer c.Release()
	meta, err = c.Bytes()
	return h, meta, err
}

// advance moves the position in the copied start.
func (r *DeviceReader) advance(n int64) {
	r.at += n
	r.have = max(r.have-n, 0)
}

// prefetch copies the start of a message to the host.
func (r *DeviceReader) prefetch() ([]byte, error) {
	if !r.has {
		b, err := r.acquire(r.heads)
		if err != nil {
			return nil, fmt.Errorf("read the start of a message: %w", r.reason(err))
		}
		r.head, r.has = b, true
	}
	n := min(r.pending.Len(), r.head.Extent().Len)
	dst := r.head.Extent().Sub(0, n)
	if err := r.toHost([]mem.Extent{dst}); err != nil {
		r.has = false
		chain.AfterCopy(err, r.head.Release)
		return nil, fmt.Errorf("read the start of a message: %w", r.reason(err))
	}
	r.at, r.have = 0, n
	return dst.Bytes(), nil
}

// acquire returns a block, or an error after a bounded wait.
func (r *DeviceReader) acquire(a *mem.Arena) (mem.ArenaBlock, error) {
	ctx, cancel := context.WithTimeout(r.e.reading, maxMemoryWait)
	defer cancel()
	return a.Acquire(ctx)
}

// toHost copies the first bytes of pending to the extents, by one call of the device. After an
// error the extents may be in use, as chain.AfterCopy reports.
func (r *DeviceReader) toHost(dst []mem.Extent) error {
	if err := r.flush(); err != nil {
		return err
	}
	var to, from []mem.Extent
	i, used := 0, int64(0)
	for _, src := range r.pending.Pieces() {
		for src.Len > 0 && i < len(dst) {
			n := min(src.Len, dst[i].Len-used)
			to, from = append(to, dst[i].Sub(used, n)), append(from, src.Sub(0, n))
			src = src.Sub(n, src.Len-n)
			if used += n; used == dst[i].Len {
				i, used = i+1, 0
			}
		}
	}
	ctx, cancel := context.WithTimeout(r.e.reading, r.limits.Stall)
	defer cancel()
	err := r.dev.Copy(ctx, to, from)
	if err != nil {
		n := int64(0)
		for _, e := range from {
			n += e.Len
		}
		if held, errSlice := r.pending.Slice(0, n); errSlice == nil { // the range is valid
			chain.AfterCopy(err, held.Release)
		}
	}
	return err
}

// flush makes bytes that have arrived since the last flush visible.
func (r *DeviceReader) flush() error {
	if r.fresh == r.received {
		return nil
	}
	if err := r.dev.Flush(); err != nil {
		return fmt.Errorf("flush writes of the NIC: %w", err)
	}
	r.fresh = r.received
	return nil
}

// copy returns the next n bytes in pinned host memory, and removes them from pending.
func (r *DeviceReader) copy(n int64) (*chain.Chain, error) {
	if err := r.fill(n); err != nil {
		return nil, err
	}
	out := new(chain.Chain)
	var dst []mem.Extent
	for done := int64(0); done < n; {
		b, err := r.acquire(r.host)
		if err != nil {
			out.Release()
			return nil, r.reason(fmt.Errorf("%w: %w", ErrHostMemory, err))
		}
		e := b.Extent()
		e = e.Sub(0, min(e.Len, n-done))
		block, err := chain.NewRegistered(e, b.Release)
		if err != nil {
			b.Release()
			out.Release()
			return nil, err
		}
		out.AppendBlock(block, e.Len)
		dst = append(dst, e)
		done += e.Len
	}
	if err := r.toHost(dst); err != nil {
		chain.AfterCopy(err, out.Release)
		return nil, r.reason(err)
	}
	r.pending.Cut(n).Release()
	r.advance(n)
	return out, nil
}

// reason returns the reason for which a copy, or a wait for memory, failed with err: the end of the
// endpoint if that has interrupted it, or err.
func (r *DeviceReader) reason(err error) error {
	if r.e.reading.Err() != nil {
		return context.Cause(r.e.reading)
	}
	return err
}

// ReadHost returns the next n data bytes in host memory. It returns ErrHostMemory if there is none;
// Skip may follow.
func (r *DeviceReader) ReadHost(n int64) (*chain.Chain, error) {
	switch {
	case n < 0 || n > r.left:
		return nil, fmt.Errorf("read %d of the %d bytes that a frame has left: %w", n, r.left, errdefs.ErrInvalid)
	case n > r.have:
		c, err := r.copy(n)
		if err == nil {
			r.left -= n
		}
		return c, err
	}
	c := new(chain.Chain)
	if n > 0 {
		b := chain.Get(int(n))
		copy(b.Memory(), r.head.Extent().Sub(r.at, n).Bytes())
		c.AppendBlock(b, n)
		r.pending.Cut(n).Release()
		r.advance(n)
		r.left -= n
	}
	return c, nil
}

// ReadChain returns the next n data bytes in device memory, visible to the device.
func (r *DeviceReader) ReadChain(n int64) (*chain.Chain, error) {
	c, err := r.input.ReadChain(n)
	if err != nil {
		return nil, err
	}
	r.have = 0
	if err := r.flush(); err != nil {
		c.Release()
		return nil, err
	}
	return c, nil
}

// Close releases the memory of the reader.
func (r *DeviceReader) Close() {
	r.input.Close()
	if r.has {
		r.head.Release()
		r.has = false
	}
}
