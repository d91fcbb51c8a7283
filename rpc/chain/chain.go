// Package chain has sequences of memory blocks: host, host-pinned and device memory in any order.
// Chains share blocks by reference counts, so slices and appends copy no bytes.
//
// The constructor of a Block sets the kind of its memory. Methods that return or copy bytes (Bytes,
// CopyTo, Buffers) return ErrNotSupported for device memory.
package chain

import (
	"fmt"
	"iter"
	"net"
	"sync/atomic"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// Block is memory that chains refer to. It is safe for concurrent use.
type Block struct {
	bytes  []byte     // host or pinned memory
	extent mem.Extent // pinned or device memory
	copier Copier     // of device memory; nil: none
	refs   atomic.Int64
	free   func()
}

// NewHost returns a block of host memory. The last Release calls free, which may be nil. The bytes
// must not change until then.
func NewHost(bytes []byte, free func()) *Block { return newBlock(&Block{bytes: bytes, free: free}) }

// NewRegistered returns a block of registered memory: pinned or device memory, by the kind of the
// extent's region. The last Release calls free, which may be nil. It returns ErrInvalid for an
// extent outside its region and for files.
func NewRegistered(e mem.Extent, free func()) (*Block, error) {
	if err := e.Validate(); err != nil {
		return nil, fmt.Errorf("make block: %w", err)
	}
	b := &Block{extent: e, free: free}
	switch kind := e.Region.Kind(); kind {
	case mem.KindDevice:
	case mem.KindHost, mem.KindHostPinned:
		b.bytes = e.Bytes()
	default:
		return nil, fmt.Errorf("make block of %s memory: %w", kind, errdefs.ErrInvalid)
	}
	return newBlock(b), nil
}

func newBlock(b *Block) *Block {
	b.refs.Store(1)
	return b
}

// Len returns the length in bytes.
func (b *Block) Len() int64 {
	if b.bytes != nil {
		return int64(len(b.bytes))
	}
	return b.extent.Len
}

// OnDevice reports whether the CPU cannot read the block.
func (b *Block) OnDevice() bool { return b.bytes == nil && b.extent.Region != nil }

// Retain adds a reference to the block.
func (b *Block) Retain() { b.refs.Add(1) }

// Release drops one reference to the block. NewHost, NewRegistered and Get return one, and
// each chain has its own.
func (b *Block) Release() {
	switch n := b.refs.Add(-1); {
	case n == 0 && b.free != nil:
		b.free()
	case n < 0:
		panic("chain: block released twice")
	}
}

// part is a range of a block. It holds one reference.
type part struct {
	block    *Block
	off, len int64
}

// Chain is a sequence of bytes in blocks. The zero value is empty. A Chain holds references until
// Release, Cut or Append moves them. It must not be copied after first use, and is not safe for
// concurrent use. A nil *Chain is empty; appending to it panics.
type Chain struct {
	parts []part
	bytes int64
	first [1]part // memory of parts while there is one
}

// add appends a part and takes over its reference.
func (c *Chain) add(p part) {
	if c.parts == nil {
		c.parts = c.first[:0]
	}
	c.parts, c.bytes = append(c.parts, p), c.bytes+p.len
}

// OfBytes returns a chain of host bytes, without a copy. The bytes must not change while it is
// used.
func OfBytes(bytes []byte) *Chain {
	c := new(Chain)
	if len(bytes) > 0 {
		c.add(part{NewHost(bytes, nil), 0, int64(len(bytes))})
	}
	return c
}

// Len returns the length in bytes.
func (c *Chain) Len() int64 {
	if c == nil {
		return 0
	}
	return c.bytes
}

// OnDevice reports whether a part of the chain is in device memory.
func (c *Chain) OnDevice() bool {
	if c == nil {
		return false
	}
	for i := range c.parts {
		if c.parts[i].block.OnDevice() {
			return true
		}
	}
	return false
}

// AppendBlock appends the first n bytes of a block, and takes over the caller's reference. It
// panics if the block is shorter.
func (c *Chain) AppendBlock(b *Block, n int64) {
	if n < 0 || n > b.Len() {
		panic(fmt.Sprintf("chain: %d bytes of a block of %d", n, b.Len()))
	}
	if n == 0 {
		b.Release()
		return
	}
	c.add(part{b, 0, n})
}

// Append moves all of o to the end of c. o is empty afterwards. It panics if o is c.
func (c *Chain) Append(o *Chain) {
	if o == c {
		panic("chain: append of a chain to itself")
	}
	if o == nil {
		return
	}
	for _, p := range o.parts {
		c.add(p)
	}
	o.parts, o.bytes, o.first = nil, 0, [1]part{}
}

// Cut removes the first n bytes, or all if there are fewer, and returns them.
func (c *Chain) Cut(n int64) *Chain {
	out := new(Chain)
	for n > 0 && c.Len() > 0 {
		p := c.parts[0]
		if p.len > n {
			p.block.refs.Add(1)
			c.parts[0].off, c.parts[0].len = p.off+n, p.len-n
			p.len = n
		} else {
			c.parts[0] = part{}
			c.parts = c.parts[1:]
		}
		out.add(p)
		c.bytes -= p.len
		n -= p.len
	}
	return out
}

// Slice returns n bytes from offset off. Both chains refer to the same blocks. It returns
// ErrInvalid if the range is not in the chain.
func (c *Chain) Slice(off, n int64) (*Chain, error) {
	if off < 0 || n < 0 || off > c.Len() || n > c.Len()-off {
		return nil, fmt.Errorf("slice %d bytes from %d of a chain of %d: %w", n, off, c.Len(), errdefs.ErrInvalid)
	}
	out := new(Chain)
	for i := 0; n > 0; i++ {
		p := c.parts[i]
		if off >= p.len {
			off -= p.len
			continue
		}
		p.off, p.len = p.off+off, min(p.len-off, n)
		p.block.refs.Add(1)
		out.add(p)
		off, n = 0, n-p.len
	}
	return out, nil
}

// Contiguous returns all bytes: without a copy if they are in one block. It returns ErrNotSupported
// if the chain has device memory. The bytes are valid until Release.
func (c *Chain) Contiguous() ([]byte, error) {
	if c != nil && len(c.parts) == 1 && !c.OnDevice() {
		return c.parts[0].host(), nil
	}
	return c.Bytes()
}

// CopyTo copies bytes from offset off into p and returns their number, which is less than len(p)
// only at the end of the chain. It returns ErrNotSupported at device memory, with the number of
// bytes before it, and ErrInvalid for an offset outside the chain.
func (c *Chain) CopyTo(p []byte, off int64) (int, error) {
	if off < 0 || off > c.Len() {
		return 0, fmt.Errorf("copy from %d of a chain of %d: %w", off, c.Len(), errdefs.ErrInvalid)
	}
	done := 0
	for i := 0; c != nil && i < len(c.parts) && done < len(p); i++ {
		q := &c.parts[i]
		if off >= q.len {
			off -= q.len
			continue
		}
		if q.block.OnDevice() {
			return done, fmt.Errorf("copy to the host: %w: the chain has device memory", errdefs.ErrNotSupported)
		}
		done += copy(p[done:], q.host()[off:])
		off = 0
	}
	return done, nil
}

// host returns the bytes of a part in host or pinned memory.
func (p *part) host() []byte { return p.block.bytes[p.off : p.off+p.len] }

// Bytes returns a copy of all bytes. It returns ErrNotSupported if the chain has device memory.
func (c *Chain) Bytes() ([]byte, error) {
	out := make([]byte, c.Len())
	_, err := c.CopyTo(out, 0)
	return out, err
}

// Buffers appends the memory of the chain to list, without a copy. It returns ErrNotSupported if
// the chain has device memory. The slices are valid until Release.
func (c *Chain) Buffers(list net.Buffers) (net.Buffers, error) {
	if c == nil {
		return list, nil
	}
	if c.OnDevice() {
		return list, fmt.Errorf("list host memory: %w: the chain has device memory", errdefs.ErrNotSupported)
	}
	for i := range c.parts {
		list = append(list, c.parts[i].host())
	}
	return list, nil
}

// Pieces returns the memory of the chain in order: the bytes of a part that the CPU reaches, else
// nil, and the extent of a part that is registered, else one without a region.
func (c *Chain) Pieces() iter.Seq2[[]byte, mem.Extent] {
	return func(yield func([]byte, mem.Extent) bool) {
		for i := 0; c != nil && i < len(c.parts); i++ {
			p := &c.parts[i]
			var b []byte
			var e mem.Extent
			if p.block.bytes != nil {
				b = p.host()
			}
			if p.block.extent.Region != nil {
				e = p.block.extent.Sub(p.off, p.len)
			}
			if !yield(b, e) {
				return
			}
		}
	}
}

// Extents returns the registered memory of the chain. It returns ErrNotSupported if a part is host
// memory that is not registered. The extents are valid until Release.
func (c *Chain) Extents() ([]mem.Extent, error) {
	if c == nil {
		return nil, nil
	}
	list := make([]mem.Extent, 0, len(c.parts))
	for i := range c.parts {
		p := &c.parts[i]
		if p.block.extent.Region == nil {
			return nil, fmt.Errorf("list registered memory: %w: the chain has other host memory", errdefs.ErrNotSupported)
		}
		list = append(list, p.block.extent.Sub(p.off, p.len))
	}
	return list, nil
}

// Release drops the references to all blocks and empties the chain.
func (c *Chain) Release() {
	if c == nil {
		return
	}
	for i := range c.parts {
		c.parts[i].block.Release()
	}
	c.parts, c.bytes, c.first = nil, 0, [1]part{}
}
