package device

import (
	"encoding/binary"
	"math/bits"
)

// KernelResident stays on its thread blocks and takes work from rings in pinned memory, so that a copy costs neither a
// launch nor a synchronise. Args: [0] address of worker 0's control block, aligned to ResidentLine; [1] bytes from one
// worker's control block to the next, a multiple of ResidentLine; [2] generation, not zero and never used before on these
// control blocks; [3] idle limit and [4] lease, in nanoseconds.
//
// Each of the launch's CTAs is a worker of its own: worker w reads the control block at Args[0] + w*Args[1]. Workers know
// nothing of each other; whoever wants two of them to share a batch gives each a part.
//
// Control block, in pinned memory, u64 words, little-endian:
//
//	byte 0    next    written by the host before the launch: sequence number of the first entry to take, 1 or more
//	byte 8    ring    written by the host before the launch: device address of the ring, aligned to ResidentLine
//	byte 16   depth   written by the host before the launch: entries of the ring, a power of two
//	byte 128  done    written by the worker: the last entry that is complete; zero before the first
//	byte 136  exited  written by the worker: the generation that has left
//
// Entry n lies at ring + n%depth*ResidentEntryBytes. Its first line says all, but for the pieces of a ResidentCopy that are
// more than four, which go on in the lines behind it. The last word of the first line is ResidentCheck of what the entry
// uses. The worker reads the whole entry at once, again and again until the check fits and word 0 is next, and does what
// it says; then it sets done, and next is one more. So the host may write an entry's words in any order, leave as they are
// those that it does not use, and no assumption is made about how the bus cuts a read; what the entry points at must have
// been written before its check is. The host must not overwrite entry n, nor what it points at, before done >= n.
//
// When done >= n is seen, the bytes that entry n copied are visible to the CPU if they went to pinned memory, and to
// whatever is launched afterwards if they went to device memory. Bytes to read, too, may have been written by anything
// that was complete when the entry was written.
//
// A worker leaves when an entry says ResidentStop, when it has seen no entry for the idle limit, and before it takes an
// entry after its lease has passed since it started. It leaves only between entries: it sets exited last, after done, and
// touches nothing afterwards. The host that sees exited == generation, and reads done after that, knows that entries up
// to done were done, once, and that none beyond was touched; it launches again with next = done + 1 and another
// generation to have those done that it has written since. A word other than those listed, in an entry that fits its check,
// makes the worker leave too, with done below that entry.
//
// Drivers free memory and load code only when no kernel runs, so whoever does either waits until all workers have left: a
// lease bounds that, and an entry that says ResidentStop ends it.
const KernelResident = "kvlane_resident"

// Layout of control blocks and entries.
const (
	ResidentLine         = 128
	ResidentControlBytes = 256
	ResidentEntryBytes   = 512
	ResidentEntryWords   = ResidentEntryBytes / 8
	ResidentLast         = ResidentLine - 8 // the byte at which an entry's check is, which is stored last

	ResidentNext   = 0
	ResidentRing   = 8
	ResidentDepth  = 16
	ResidentDone   = 128
	ResidentExited = 136
)

// Word 1 of an entry: what it asks for. Word 0 is the sequence number. Word 14 is zero but for ResidentCopy.
const (
	// ResidentCopy copies as many pieces as word 14 says, at most ResidentInline, each {dst, src, bytes}: the first
	// ResidentFirst from byte ResidentFirstAt on, the others from byte ResidentMoreAt on. All warps share the pieces.
	ResidentCopy = 1
	// ResidentList is KernelCopyList: words 2 and 3 are its arguments.
	ResidentList = 2
	// ResidentPaged is KernelCopyPaged: words 2 to 8 are its arguments.
	ResidentPaged = 3
	// ResidentStop makes the worker leave; the entry counts as done.
	ResidentStop = 4
)

// Where the pieces of a ResidentCopy are.
const (
	ResidentInline  = ResidentFirst + (ResidentEntryBytes-ResidentMoreAt)/CopyDescBytes
	ResidentFirst   = 4
	ResidentFirstAt = 16
	ResidentMoreAt  = ResidentLine
	ResidentPieces  = 14 // the word that says how many
)

// ResidentWords is an entry; its check is computed and not looked at.
type ResidentWords [ResidentEntryWords]uint64

// ResidentPiece returns the first word of piece i.
func ResidentPiece(i int) int {
	if i < ResidentFirst {
		return ResidentFirstAt/8 + i*CopyDescBytes/8
	}
	return ResidentMoreAt/8 + (i-ResidentFirst)*CopyDescBytes/8
}

// Put writes what the entry uses to b, of ResidentEntryBytes, all but its check, which it returns: to be stored at
// b[ResidentLast:] in one step, after what the words point at was written.
func (w *ResidentWords) Put(b []byte) (check uint64) {
	for i := range 2 * residentPairs(w[ResidentPieces]) {
		if i != ResidentLast/8 {
			binary.LittleEndian.PutUint64(b[8*i:], w[i])
		}
	}
	return ResidentCheck(b)
}

// ResidentCheck returns the check of the entry in b. It is a sum over pairs of words, words 2i and 2i+1: of those of the
// first line, and then as far as there are pieces. What pair i adds is the lower half of a product of 128 bits, exclusive
// or its upper half: of word 2i plus (2i+1)*0x9e3779b97f4a7c15, and of word 2i+1, exclusive or 0xbf58476d1ce4e5b9. The
// check itself counts as zero.
func ResidentCheck(b []byte) uint64 {
	const first = ResidentLast &^ 15 // of the check's own pair
	pieces := binary.LittleEndian.Uint64(b[first:])
	sum, k := residentSum(0, residentStep, b[:first])
	sum += residentMix(pieces+k, 0)
	if pieces > ResidentFirst {
		sum, _ = residentSum(sum, k+residentStep+residentStep, b[ResidentLine:16*residentPairs(pieces)])
	}
	return sum
}

const residentStep, residentSalt uint64 = 0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9

// residentSum adds pairs to sum, the first of them with k, and returns the k of the one after the last.
func residentSum(sum, k uint64, pairs []byte) (uint64, uint64) {
	for ; len(pairs) >= 16; pairs = pairs[16:] {
		sum += residentMix(binary.LittleEndian.Uint64(pairs)+k, binary.LittleEndian.Uint64(pairs[8:]))
		k += residentStep
		k += residentStep
	}
	return sum, k
}

func residentMix(x, y uint64) uint64 {
	hi, lo := bits.Mul64(x, y^residentSalt)
	return hi ^ lo
}

// residentPairs is how many pairs of words count of an entry with so many pieces.
func residentPairs(pieces uint64) int {
	if pieces <= ResidentFirst {
		return ResidentLine / 16
	}
	return (ResidentPiece(int(min(pieces, ResidentInline))) + 1) / 2
}
