package block

import (
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"
)

// SumAlgo is the algorithm of shard checksums. Every header contains it.
type SumAlgo uint32

// Checksum algorithms. XXH3 is the 64-bit variant with seed 0 and the default secret.
const (
	// SumXXH3 is XXH3 of the shard's bytes. Earlier builds wrote it.
	SumXXH3 SumAlgo = 1
	// SumTree is XXH3 of the XXH3 sums of the shard's leaves, as little-endian 64-bit words. Leaves
	// have LeafBytes; the last may be shorter. Leaves can be summed in any order, for example by
	// the threads of a copy kernel.
	SumTree SumAlgo = 2
)

// DefaultSum is the algorithm for new blocks.
const DefaultSum = SumTree

// LeafBytes is the length of a leaf of SumTree.
const LeafBytes = 4096

// String returns the name of the algorithm.
func (a SumAlgo) String() string {
	switch a {
	case SumXXH3:
		return "xxh3"
	case SumTree:
		return "xxh3-tree-4k"
	}
	return fmt.Sprintf("checksum algorithm %d", uint32(a))
}

func (a SumAlgo) known() bool { return a == SumXXH3 || a == SumTree }

// sum returns the checksum of a shard. a must be known.
func (a SumAlgo) sum(shard []byte) uint64 {
	if a == SumXXH3 {
		return xxh3.Hash(shard)
	}
	return sumTree(shard)
}

// Leaves returns the number of leaves of a shard of n bytes.
func Leaves(n int64) int { return int((n + LeafBytes - 1) / LeafBytes) }

// SumLeaf returns the checksum of one leaf.
func SumLeaf(leaf []byte) uint64 { return xxh3.Hash(leaf) }

// FoldLeaves returns the SumTree checksum of a shard from the checksums of its leaves, in order. It
// does not allocate.
func FoldLeaves(leaves []uint64) uint64 {
	if len(leaves) > fewLeaves {
		return foldMany(leaves)
	}
	var words [8 * fewLeaves]byte
	for i, sum := range leaves {
		binary.LittleEndian.PutUint64(words[8*i:], sum)
	}
	return xxh3.Hash(words[:8*len(leaves)])
}

func foldMany(leaves []uint64) uint64 {
	var f folder
	for _, sum := range leaves {
		f.add(sum)
	}
	return f.sum()
}

func sumTree(shard []byte) uint64 {
	if len(shard) > fewLeaves*LeafBytes {
		return sumLongTree(shard)
	}
	var words [8 * fewLeaves]byte
	n := 0
	for len(shard) > 0 {
		leaf := shard[:min(LeafBytes, len(shard))]
		binary.LittleEndian.PutUint64(words[n:], xxh3.Hash(leaf))
		shard = shard[len(leaf):]
		n += 8
	}
	return xxh3.Hash(words[:n])
}

// fewLeaves is the largest number of leaves that FoldLeaves sums without a folder. Clearing a
// folder's 3 KiB costs more than it saves for so few.
const fewLeaves = 16

func sumLongTree(shard []byte) uint64 {
	var f folder
	for len(shard) > 0 {
		leaf := shard[:min(LeafBytes, len(shard))]
		f.add(xxh3.Hash(leaf))
		shard = shard[len(leaf):]
	}
	return f.sum()
}

// folder hashes a sequence of words. The words of a shard of up to 1 MiB fit into its buffer.
type folder struct {
	buf  [2048]byte
	n    int
	more xxh3.Hasher // hash of the words spilled before
	long bool
}

func (f *folder) add(word uint64) {
	if f.n == len(f.buf) {
		f.spill()
	}
	binary.LittleEndian.PutUint64(f.buf[f.n:], word)
	f.n += 8
}

func (f *folder) spill() {
	f.long = true
	_, _ = f.more.Write(f.buf[:f.n]) // never fails
	f.n = 0
}

func (f *folder) sum() uint64 {
	if !f.long {
		return xxh3.Hash(f.buf[:f.n])
	}
	f.spill()
	return f.more.Sum64()
}
