package storage

import (
	"encoding/binary"
	"math"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// Driver is a library that moves bytes between files and device memory. Its methods are safe for
// concurrent use. Callers ensure that a buffer is registered once and that nothing is used after
// its release, so a Driver need not check it.
type Driver interface {
	// Register registers the file behind fd. The returned File may be an Enqueuer.
	Register(fd int) (File, error)
	RegisterBuffer(r *mem.Region) error
	UnregisterBuffer(r *mem.Region) error
	// Close releases the library. No files may be registered.
	Close() error
}

// File is a registered file.
type File interface {
	Mode() device.StorageMode
	// Move reads or writes e at byte off of the file and returns the number of moved bytes.
	Move(d Direction, e mem.Extent, off int64) (int64, error)
	// Deregister releases the file, which must no longer be in use.
	Deregister()
}

// Enqueuer is a File that supports transfers on queues.
type Enqueuer interface {
	File
	// Enqueue enqueues a transfer between the file and e with the words w. It may return an error
	// although it has enqueued something, because w stays valid until the queue has passed it.
	Enqueue(q device.Queue, d Direction, e mem.Extent, w Words) error
	// Outcome returns the result of a transfer that the queue has passed.
	Outcome(d Direction, e mem.Extent, w Words) (int64, error)
}

// Direction is the direction of a transfer, seen from the file.
type Direction uint8

// The directions of transfers.
const (
	Read  Direction = iota // from the file to the device
	Write                  // from the device to the file
)

// String returns "read" or "write".
func (d Direction) String() string {
	if d == Write {
		return "write"
	}
	return "read"
}

// The offsets in bytes of the words of a transfer. The library reads three of the words when the
// queue runs the transfer, and writes one.
const (
	WordSize       = 0 // number of bytes to move
	WordFileOffset = 8 // offset in the file
	// WordBufferOffset is the offset in the extent. It is always 0, because libcufile 1.15 fails
	// otherwise (EIO, compatibility mode).
	WordBufferOffset = 16
	WordMoved        = 24 // number of moved bytes, or a negative code of the library
)

// Unset is the value of WordMoved until the library writes it.
const Unset = math.MinInt64

// Words are the words of a transfer: WordsBytes of pinned memory.
type Words struct{ mem.Extent }

// WordsBytes is the pinned memory of a transfer: a line of the CPU's cache, so that no two
// transfers share a line.
const WordsBytes = 64

// Load returns the word at this offset.
func (w Words) Load(word int64) int64 { return int64(binary.LittleEndian.Uint64(w.at(word))) }

// Store sets the word at this offset.
func (w Words) Store(word, v int64) { binary.LittleEndian.PutUint64(w.at(word), uint64(v)) }

// CPU returns the address of the word at this offset, for the library.
func (w Words) CPU(word int64) mem.CPUAddr { return w.Region.CPU() + mem.CPUAddr(w.Off+word) }

func (w Words) at(word int64) []byte { return w.Region.Bytes()[w.Off+word:][:8] }
