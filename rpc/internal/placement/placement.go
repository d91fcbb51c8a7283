// Package placement reads and writes the extension of RPC metas by which kvlane peers place data
// directly into memory of each other. brpc skips it. It is field 1000 of a meta, with a protobuf
// message:
//
//	1  Memory: the source, which the server may read
//	2  Memory: the destination, which the server may write
//	3  int64: correlation id of a call whose transfers must end before the answer
//
// A Memory has repeated Ranges (1) and packed page numbers (2). A Range has an address (1), a
// length (2), a remote key (3) and a stride (4). Without pages the ranges follow each other. With
// pages each range is a plane, and its part of page n begins n strides after the address. The bytes
// of one page in all planes come before those of the next page.
package placement

import (
	"fmt"
	"iter"
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rpc/internal/fields"
)

// Field is the number of the extension in a meta.
const Field protowire.Number = 1000

// Limits of a Memory.
const (
	MaxPieces = 1 << 20
	MaxBytes  = 1 << 40
)

// Range is a part of the memory of a peer.
type Range struct {
	Addr, Bytes uint64
	Key         uint32
	Stride      uint64 // of a plane
}

// Memory is a sequence of bytes in the memory of a peer.
type Memory struct {
	Ranges []Range
	Pages  []uint32 // nil: the ranges are not planes
}

// Message is the extension. Empty memory is absent.
type Message struct {
	Source, Destination Memory
	Cancel              int64
}

// Pieces returns the parts in the order of the bytes.
func (m *Memory) Pieces() iter.Seq[Range] {
	return func(yield func(Range) bool) {
		if m.Pages == nil {
			for _, r := range m.Ranges {
				if !yield(r) {
					return
				}
			}
			return
		}
		for _, page := range m.Pages {
			for _, r := range m.Ranges {
				if !yield(Range{Addr: r.Addr + uint64(page)*r.Stride, Bytes: r.Bytes, Key: r.Key}) {
					return
				}
			}
		}
	}
}

func (m *Memory) pieces() int {
	if m.Pages == nil {
		return len(m.Ranges)
	}
	return len(m.Ranges) * len(m.Pages)
}

// Bytes returns the length. It returns ErrInvalid for memory over the limits, and for ranges and
// pages that end beyond the address space.
func (m *Memory) Bytes() (int64, error) {
	if n := m.pieces(); n > MaxPieces || m.Pages != nil && n == 0 {
		return 0, fmt.Errorf("placement of %d pieces, of at most %d: %w", n, MaxPieces, errdefs.ErrInvalid)
	}
	last, total := uint64(0), uint64(0)
	for _, p := range m.Pages {
		last = max(last, uint64(p))
	}
	for _, r := range m.Ranges {
		if r.Bytes == 0 || r.Bytes > MaxBytes || r.Addr > math.MaxUint64-r.Bytes || r.Stride > 0 && last > (math.MaxUint64-r.Addr-r.Bytes)/r.Stride {
			return 0, fmt.Errorf("placement of %d bytes at %#x: %w", r.Bytes, r.Addr, errdefs.ErrInvalid)
		}
		if total += r.Bytes; total > MaxBytes {
			break
		}
	}
	if pages := uint64(max(len(m.Pages), 1)); total > MaxBytes/pages {
		return 0, fmt.Errorf("placement of more than %d bytes: %w", int64(MaxBytes), errdefs.ErrInvalid)
	}
	return int64(total) * int64(max(len(m.Pages), 1)), nil
}

// Append appends the extension to the unknown fields of a meta.
func (m *Message) Append(b []byte) []byte {
	var x []byte
	for i, memory := range []*Memory{&m.Source, &m.Destination} {
		if len(memory.Ranges) > 0 {
			x = bytesField(x, protowire.Number(i+1), memory.encode())
		}
	}
	if m.Cancel != 0 {
		x = numberField(x, 3, uint64(m.Cancel))
	}
	return bytesField(b, Field, x)
}

func (m *Memory) encode() (b []byte) {
	for _, r := range m.Ranges {
		var x []byte
		for i, v := range []uint64{r.Addr, r.Bytes, uint64(r.Key), r.Stride} {
			x = numberField(x, protowire.Number(i+1), v)
		}
		b = bytesField(b, 1, x)
	}
	if m.Pages != nil {
		var x []byte
		for _, p := range m.Pages {
			x = protowire.AppendVarint(x, uint64(p))
		}
		b = bytesField(b, 2, x)
	}
	return b
}

func bytesField(b []byte, n protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), v)
}

func numberField(b []byte, n protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), v)
}

// Decode finds the extension in the unknown fields of a meta. It returns nil if there is none, and
// ErrInvalid for a malformed one and memory over the limits.
func Decode(unknown []byte) (m *Message, err error) {
	err = fields.Each(unknown, func(n protowire.Number, _ uint64, b []byte) error {
		if n != Field || b == nil {
			return nil
		}
		m = new(Message)
		return m.decode(b)
	})
	return m, err
}

func (m *Message) decode(b []byte) error {
	err := fields.Each(b, func(n protowire.Number, v uint64, b []byte) error {
		switch {
		case b != nil && n == 1:
			return m.Source.decode(b)
		case b != nil && n == 2:
			return m.Destination.decode(b)
		case b == nil && n == 3:
			m.Cancel = int64(v)
		}
		return nil
	})
	for _, memory := range []*Memory{&m.Source, &m.Destination} {
		if err == nil {
			_, err = memory.Bytes()
		}
	}
	return err
}

func (m *Memory) decode(b []byte) error {
	return fields.Each(b, func(n protowire.Number, _ uint64, b []byte) error {
		switch {
		case b != nil && n == 1:
			var r Range
			err := r.decode(b)
			m.Ranges = append(m.Ranges, r)
			return err
		case b != nil && n == 2:
			if m.Pages == nil {
				m.Pages = []uint32{}
			}
			for len(b) > 0 {
				v, size := protowire.ConsumeVarint(b)
				if size < 0 || v > math.MaxUint32 {
					return fmt.Errorf("decode placement: wrong page: %w", errdefs.ErrInvalid)
				}
				m.Pages, b = append(m.Pages, uint32(v)), b[size:]
			}
		}
		return nil
	})
}

func (r *Range) decode(b []byte) error {
	return fields.Each(b, func(n protowire.Number, v uint64, b []byte) error {
		switch {
		case b != nil:
		case n == 1:
			r.Addr = v
		case n == 2:
			r.Bytes = v
		case n == 3:
			if v > math.MaxUint32 {
				return fmt.Errorf("decode placement: key %#x: %w", v, errdefs.ErrInvalid)
			}
			r.Key = uint32(v)
		case n == 4:
			r.Stride = v
		}
		return nil
	})
}
