package block

import (
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/errdefs"
)

// AlignBytes is what header and shards are aligned to: the largest logical block and page size of the devices that
// direct I/O has to please.
const AlignBytes = 4096

// The largest layouts. They bound what a reader of foreign bytes will believe.
const (
	MaxShards     = 4096
	MaxImageBytes = 1 << 36
)

// Layout says how a block's image divides: header, then each shard at a multiple of AlignBytes, then zeros up to one.
// It is immutable.
type Layout struct {
	lens   []int64
	offs   []int64
	header int64
	image  int64
}

// NewLayout returns the layout of an image with one shard of shardBytes[i] bytes for each i.
func NewLayout(shardBytes []int64) (*Layout, error) {
	if n := len(shardBytes); n == 0 || n > MaxShards {
		return nil, fmt.Errorf("make block layout of %d shards: want 1 to %d: %w", n, MaxShards, errdefs.ErrInvalid)
	}
	l := &Layout{
		lens:   slices.Clone(shardBytes),
		offs:   make([]int64, len(shardBytes)),
		header: align(headerBytes(len(shardBytes))),
	}
	at := l.header
	for i, n := range shardBytes {
		// Checked one by one, so that the sum cannot overflow.
		if n <= 0 || n > MaxImageBytes-at {
			return nil, fmt.Errorf("make block layout: shard %d of %d bytes at %d: want 1 byte or more, and at most %d an image: %w",
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

// ShardOff returns the bytes from the image's start to shard i, a multiple of AlignBytes.
func (l *Layout) ShardOff(i int) int64 { return l.offs[i] }

// LeavesOf returns how many leaves shard i has; see SumTree.
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

// ShardSizes returns the shards' lengths; NewLayout of them makes an equal layout.
func (l *Layout) ShardSizes() []int64 { return slices.Clone(l.lens) }

// Equal says whether images of l and m are laid out alike.
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

// shard returns shard i of image, and its padding.
func (l *Layout) shard(image []byte, i int) (data, padding []byte) {
	off, n := l.offs[i], l.lens[i]
	return image[off : off+n], image[off+n : off+align(n)]
}

func align(n int64) int64 { return (n + AlignBytes - 1) &^ (AlignBytes - 1) }
