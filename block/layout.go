package block

import (
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/errdefs"
)

// AlignBytes is the alignment of header and shards: the largest logical block and page size that
// direct I/O requires.
const AlignBytes = 4096

// The limits of layouts. They bound numbers that are read from untrusted bytes.
const (
	MaxShards     = 4096
	MaxImageBytes = 1 << 36
)

// Layout divides the image of a block: a header, then each shard at a multiple of AlignBytes, with
// zeros after it. It is immutable.
type Layout struct {
	lens   []int64
	offs   []int64
	header int64
	image  int64
}

// NewLayout returns the layout of an image with shards of these lengths.
func NewLayout(shardBytes []int64) (*Layout, error) {
	if n := len(shardBytes); n == 0 || n > MaxShards {
		return nil, fmt.Errorf("make block layout of %d shards: must be 1 to %d: %w", n, MaxShards, errdefs.ErrInvalid)
	}
	l := &Layout{
		lens:   slices.Clone(shardBytes),
		offs:   make([]int64, len(shardBytes)),
		header: align(headerBytes(len(shardBytes))),
	}
	at := l.header
	for i, n := range shardBytes {
		// checking each shard prevents an overflow of the sum
		if n <= 0 || n > MaxImageBytes-at {
			return nil, fmt.Errorf("make block layout: shard %d of %d bytes at %d: must be at least 1 byte, and an image at most %d: %w",
				i, n, at, int64(MaxImageBytes), errdefs.ErrInvalid)
		}
		l.offs[i] = at
		at += align(n)
	}
	l.image = at
	return l, nil
}

// Shards returns the number of shards.
func (l *Layout) Shards() int { return len(l.lens) }

// ShardBytes returns the length of shard i, without padding.
func (l *Layout) ShardBytes(i int) int64 { return l.lens[i] }

// ShardOff returns the offset of shard i in the image, a multiple of AlignBytes.
func (l *Layout) ShardOff(i int) int64 { return l.offs[i] }

// LeavesOf returns the number of leaves of shard i; see SumTree.
func (l *Layout) LeavesOf(i int) int { return Leaves(l.lens[i]) }

// HeaderBytes returns the length of the header, a multiple of AlignBytes.
func (l *Layout) HeaderBytes() int64 { return l.header }

// ImageBytes returns the length of the whole image, a multiple of AlignBytes.
func (l *Layout) ImageBytes() int64 { return l.image }

// DataBytes returns the bytes of all shards, without header and padding.
func (l *Layout) DataBytes() int64 {
	var n int64
	for _, b := range l.lens {
		n += b
	}
	return n
}

// ShardSizes returns the lengths of the shards, the argument of NewLayout.
func (l *Layout) ShardSizes() []int64 { return slices.Clone(l.lens) }

// Equal reports whether images of l and m have the same layout.
func (l *Layout) Equal(m *Layout) bool { return slices.Equal(l.lens, m.lens) }

// String describes the layout for errors and logs.
func (l *Layout) String() string {
	for _, n := range l.lens {
		if n != l.lens[0] {
			return fmt.Sprintf("%d shards, %d bytes in all", len(l.lens), l.DataBytes())
		}
	}
	return fmt.Sprintf("%d shards of %d bytes", len(l.lens), l.lens[0])
}

// shard returns shard i of image and its padding.
func (l *Layout) shard(image []byte, i int) (data, padding []byte) {
	off, n := l.offs[i], l.lens[i]
	return image[off : off+n], image[off+n : off+align(n)]
}

func align(n int64) int64 { return (n + AlignBytes - 1) &^ (AlignBytes - 1) }
