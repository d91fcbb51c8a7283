package device

import "encoding/binary"

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
// Entry n lies at ring + n%depth*ResidentEntryBytes; its last word is ResidentCheck of the fifteen before it. The worker
// looks at entry next until the check fits and word 0 is next, and does what it says; then it sets done, and next is one
// more. So the host may write an entry's words in any order, and no assumption is made about how the bus cuts a read; what
// the entry points at must have been written before its last word is. The host must not overwrite entry n, nor what it
// points at, before done >= n.
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
	ResidentEntryBytes   = 128
	ResidentEntryWords   = ResidentEntryBytes / 8
	ResidentLast         = ResidentEntryBytes - 8

	ResidentNext   = 0
	ResidentRing   = 8
	ResidentDepth  = 16
	ResidentDone   = 128
	ResidentExited = 136
)

// Word 1 of an entry: what it asks for. Word 0 is the sequence number, unused words are zero.
const (
	// ResidentCopy copies as many pieces as word 14 says, at most ResidentInline: piece i is words 2+3i to 4+3i, {dst,
	// src, bytes}. All warps share each piece.
	ResidentCopy = 1
	// ResidentList is KernelCopyList: words 2 and 3 are its arguments.
	ResidentList = 2
	// ResidentPaged is KernelCopyPaged: words 2 to 8 are its arguments.
	ResidentPaged = 3
	// ResidentStop makes the worker leave; the entry counts as done.
	ResidentStop = 4
)

// ResidentInline is the most pieces that a ResidentCopy holds.
const ResidentInline = 4

// ResidentWords is an entry before its check.
type ResidentWords [ResidentEntryWords - 1]uint64

// Put writes the entry to b, of ResidentEntryBytes, all but its last word, which it returns: to be stored at
// b[ResidentLast:] in one step, after what the words point at was written.
func (w *ResidentWords) Put(b []byte) (last uint64) {
	_ = b[ResidentEntryBytes-1]
	for i, v := range w {
		binary.LittleEndian.PutUint64(b[8*i:], v)
	}
	return ResidentCheck(w)
}

// ResidentCheck is the last word of an entry: the sum of Mix64(w[i] + 16*w[0] + i) over its words.
func ResidentCheck(w *ResidentWords) uint64 {
	var sum uint64
	for i, v := range w {
		sum += Mix64(v + 16*w[0] + uint64(i))
	}
	return sum
}
