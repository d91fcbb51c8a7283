package device

import (
	"context"

	"github.com/kvlane/kvlane/mem"
)

// StorageAlign is what offset, length and address of a transfer are multiples of, in bytes, for it to be fast. Others move
// the right bytes too, by way of the host.
const StorageAlign = 4096

// StorageOpener is a Device whose memory files are read into and written from with no staging of the caller's: cuFile.
type StorageOpener interface {
	Device
	// OpenStorage opens the device's way to files, which is one: ErrBusy while another is open. ErrNotSupported, with the
	// reason, where the library is missing; a driver of it that failed to open answers the same failure for the rest of the
	// process. It blocks for as long as a driver starts, a second mostly. Safe for concurrent use.
	OpenStorage(o StorageOptions) (Storage, error)
}

// StorageOptions says how a Storage is opened. The zero value is ready to use.
type StorageOptions struct {
	// Transfers is how many transfers on queues are made ahead: a StorageEnqueuer allocates nothing while no more than that
	// are not closed. Zero: 64.
	Transfers int
}

// Storage moves bytes between files and the memory of its device. Its methods, and those of what it opens, may be called
// from any thread, whatever its context, and concurrently.
type Storage interface {
	// Register makes the regular file behind fd known and returns it. The descriptor stays the caller's, who keeps it open
	// until StorageFile.Close has returned nil; it should be opened with O_DIRECT. It may block like an open. A failure is
	// this file's alone, a *Error with the native code.
	Register(fd int) (StorageFile, error)
	// RegisterBuffer has the driver keep r, memory of the device, ready for direct transfers, until UnregisterBuffer. Nothing
	// needs it; where it pays has to be measured. It may block. ErrExists if r is registered already.
	RegisterBuffer(r *mem.Region) error
	// UnregisterBuffer undoes RegisterBuffer, before r is freed. No transfer may be using r. ErrNotFound if r is not
	// registered.
	UnregisterBuffer(r *mem.Region) error
	// Close lets go of the driver, before the device is closed. Files and buffers that were left over are reported as an error
	// that counts them, and let go of too. While a transfer is running or queued it refuses with ErrBusy, and may be called
	// again; everything stays open then. A second Close after success returns nil.
	Close() error
}

// StorageMode says how the bytes of a file travel.
type StorageMode struct {
	// Direct: the device and the storage move them between themselves. If not, the driver carries them by way of the host,
	// with reads and writes of its own: its compatibility mode.
	Direct bool
	// Reason says why, in words.
	Reason string
}

// StorageFile is a registered file. It may be a StorageEnqueuer too.
type StorageFile interface {
	// Mode says how transfers of this file travel. It does not change.
	Mode() StorageMode
	// Read reads dst.Len bytes of the file from byte off to dst, memory of the device, and blocks until they are there. It
	// returns how many were read: fewer, without an error, where the file ends or the system stopped short. Offset, length and
	// address may be anything. What queues do with dst meanwhile is in no order with it. ErrClosed after Close, ErrInvalid for
	// memory that is not of the device; *Error with the native code or the system's error for what the driver refused.
	Read(dst mem.Extent, off int64) (moved int64, err error)
	// Write writes src to the file from byte off, and blocks until the system has taken it. It syncs nothing. Otherwise as
	// Read.
	Write(src mem.Extent, off int64) (moved int64, err error)
	// Close waits until no transfer is running or queued and lets go of the file. If ctx ends first the file stays open, as it
	// was, but refuses new transfers with ErrClosed, and Close may be called again. A second Close after success returns nil.
	Close(ctx context.Context) error
}

// StorageEnqueuer is a StorageFile whose transfers queues run, in order with their other work.
type StorageEnqueuer interface {
	StorageFile
	// EnqueueRead enqueues a Read on q, a queue of the device, and returns. dst must stay until the transfer is done. A transfer
	// that fails, or is short, is the failure of its Transfer alone: the queue goes on. It uses q as its methods do, so q's
	// user calls it.
	EnqueueRead(q Queue, dst mem.Extent, off int64) (Transfer, error)
	// EnqueueWrite enqueues a Write: otherwise as EnqueueRead.
	EnqueueWrite(q Queue, src mem.Extent, off int64) (Transfer, error)
}

// Transfer is an enqueued read or write. It owns the words that the driver reads when the transfer's turn has come and writes
// when it is done, and an event behind it: neither is used again before that event is done, whenever the Transfer is closed.
// Safe for concurrent use, but for Close.
type Transfer interface {
	// Done reports whether the transfer is over, without waiting, and with that how many bytes were moved and why it failed. An
	// error while done is false says that the queue is broken and cannot know what still touches the memory.
	Done() (moved int64, done bool, err error)
	// Wait waits until the transfer is over or ctx ends, and returns how many bytes were moved: fewer than asked for, without an
	// error, where the file ends or the system stopped short.
	Wait(ctx context.Context) (moved int64, err error)
	// Close gives the transfer back, any time. It must not be used afterwards. The memory that it moves is not free before the
	// transfer is done, so closing before is for who has recorded an event of his own behind it.
	Close()
}
