package storage

import (
	"encoding/binary"
	"math"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// Driver is a library that moves bytes between files and device memory. Its methods are safe for concurrent use and check
// nothing that this package does: that a buffer is registered once, and that nothing is used after it was let go of.
type Driver interface {
	// Register makes the file behind fd known. What it returns may be an Enqueuer.
	Register(fd int) (File, error)
	RegisterBuffer(r *mem.Region) error
	UnregisterBuffer(r *mem.Region) error
	// Close lets go of the library, when there are no files left.
	Close() error
}

// File is a registered file.
type File interface {
	Mode() device.StorageMode
	// Move reads or writes e at byte off of the file and answers how many bytes it moved.
	Move(d Direction, e mem.Extent, off int64) (int64, error)
	// Deregister lets go of the file, which nothing uses.
	Deregister()
}

// Enqueuer is a File whose transfers queues run.
type Enqueuer interface {
	File
	// Enqueue enqueues a transfer between the file and e, as w says. What it enqueued in spite of an error does no harm: w stays
	// until the queue is past it.
	Enqueue(q device.Queue, d Direction, e mem.Extent, w Words) error
	// Outcome says what came of the transfer, once the queue is past it.
	Outcome(d Direction, e mem.Extent, w Words) (int64, error)
}

// Direction is the way of a transfer.
type Direction uint8

// The directions.
const (
	Read  Direction = iota // from the file to the device
	Write                  // from the device to the file
)

// String says what is done to the file.
func (d Direction) String() string {
	if d == Write {
		return "write"
	}
	return "read"
}

// The words of a transfer, by their offset in bytes: three that it reads when its turn has come, and one that it writes.
const (
	WordSize         = 0  // how many bytes to move
	WordFileOffset   = 8  // where in the file
	WordBufferOffset = 16 // where behind the extent's begin: always 0, as libcufile 1.15 fails where it is not (EIO, compatibility mode)
	WordMoved        = 24 // how many bytes were moved, or a negative number of the library's
)

// Unsaid is what WordMoved holds until the library writes it.
const Unsaid = math.MinInt64

// Words are the words of a transfer: WordsBytes of pinned memory.
type Words struct{ mem.Extent }

// WordsBytes is how much of the pinned memory a transfer has: a line of the CPU's cache, so that no two share one.
const WordsBytes = 64

// Load returns the word at that offset.
func (w Words) Load(word int64) int64 { return int64(binary.LittleEndian.Uint64(w.at(word))) }

// Store sets the word at that offset.
func (w Words) Store(word, v int64) { binary.LittleEndian.PutUint64(w.at(word), uint64(v)) }

// CPU returns the address of the word at that offset, for the library.
func (w Words) CPU(word int64) mem.CPUAddr { return w.Region.CPU() + mem.CPUAddr(w.Off+word) }

func (w Words) at(word int64) []byte { return w.Region.Bytes()[w.Off+word:][:8] }
