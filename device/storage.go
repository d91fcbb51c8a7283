package device

import (
	"context"

	"github.com/kvlane/kvlane/mem"
)

// StorageAlign is the alignment in bytes of offset, length and address of fast transfers. Other
// transfers are correct too, but are copied through the host.
const StorageAlign = 4096

// StorageOpener is a Device that reads and writes files from its memory without staging by the
// caller, with cuFile.
type StorageOpener interface {
	Device
	// OpenStorage opens the device's access to files. It returns ErrBusy while another storage of
	// the device is open, and ErrNotSupported with the reason if the library is missing. If the
	// library's driver fails to open, every later call in the process returns the same failure.
	// OpenStorage blocks while the driver starts, usually for a second. It is safe for concurrent
	// use.
	OpenStorage(o StorageOptions) (Storage, error)
}

// StorageLooker is a StorageOpener that can predict the mode of files.
type StorageLooker interface {
	StorageOpener
	// LookStorage returns the mode that files in dir, an absolute and clean path, will probably
	// have. It loads no library and opens no file in dir. It is safe for concurrent use.
	LookStorage(dir string) StorageMode
}

// StorageOptions configures a Storage. The zero value is ready to use.
type StorageOptions struct {
	// Transfers is the number of queued transfers for which pinned memory is allocated in advance.
	// A StorageEnqueuer allocates no more while at most that many are unfinished. Zero means 64.
	Transfers int
}

// Storage moves bytes between files and the memory of its device. Its methods, and those of its
// files and transfers, may be called concurrently from any thread, in any context.
type Storage interface {
	// Register registers the regular file behind fd. The caller keeps the descriptor open until
	// StorageFile.Close has returned nil, and should open it with O_DIRECT. Register may block like
	// an open. A failure affects only this file, and is a *Error with the native code.
	Register(fd int) (StorageFile, error)
	// RegisterBuffer prepares r, device memory, for direct transfers until UnregisterBuffer. It is
	// optional, and its gain must be measured. It may block. It returns ErrExists if r is already
	// registered.
	RegisterBuffer(r *mem.Region) error
	// UnregisterBuffer undoes RegisterBuffer. Call it before r is freed, while no transfer uses r.
	// It returns ErrNotFound if r is not registered.
	UnregisterBuffer(r *mem.Region) error
	// Close releases the driver. Call it before the device is closed. It also releases open files
	// and buffers, and returns an error with their number. While a call or a queued transfer is
	// unfinished, Close returns ErrBusy and may be called again; new calls already fail. A second
	// Close after success returns nil.
	Close() error
}

// StorageMode describes how a file's bytes are moved.
type StorageMode struct {
	// Direct is set if bytes move directly between device and storage. Otherwise the driver copies
	// them through the host with its own reads and writes, its compatibility mode.
	Direct bool
	// Reason is the reason for the mode, as text.
	Reason string
}

// StorageFile is a registered file. It may be a StorageEnqueuer too.
type StorageFile interface {
	// Mode returns how bytes of this file are moved. It does not change.
	Mode() StorageMode
	// Read reads dst.Len bytes of the file from byte off to dst, device memory, and blocks until
	// they have arrived. It returns the number of bytes read. The number is smaller, without an
	// error, at the end of the file or if the system stopped early. Offset, length and address may
	// have any alignment. Read is not ordered with work of queues on dst. It returns ErrClosed
	// after Close and ErrInvalid for memory of another device. If the driver refuses, it returns a
	// *Error with the native code or the system's error.
	Read(dst mem.Extent, off int64) (moved int64, err error)
	// Write writes src to the file from byte off, and blocks until the system has accepted the
	// bytes. It does not sync. Otherwise it is like Read.
	Write(src mem.Extent, off int64) (moved int64, err error)
	// Close waits until no transfer is running or queued, and releases the file. If ctx ends first,
	// the file stays open but refuses new transfers with ErrClosed, and Close may be called again.
	// A second Close after success returns nil.
	Close(ctx context.Context) error
}

// StorageEnqueuer is a StorageFile with transfers that queues run in order with their other work.
type StorageEnqueuer interface {
	StorageFile
	// EnqueueRead enqueues a Read on q, a queue of the device, and returns. dst must stay valid
	// until the transfer is done. A failed or short transfer affects only its Transfer, and the
	// queue continues. EnqueueRead is a use of q, which has one user at a time.
	EnqueueRead(q Queue, dst mem.Extent, off int64) (Transfer, error)
	// EnqueueWrite enqueues a Write. Otherwise it is like EnqueueRead.
	EnqueueWrite(q Queue, src mem.Extent, off int64) (Transfer, error)
}

// Transfer is an enqueued read or write. It owns an event, and the words that the driver reads when
// the queue runs the transfer and writes when the transfer is done. Even if the Transfer is closed
// earlier, they are not reused before the event is done. It is safe for concurrent use, except for
// Close.
type Transfer interface {
	// Done reports whether the transfer is finished, without waiting, and then returns the number
	// of moved bytes and the transfer's error. If done is false, an error means that the queue is
	// broken, and that the memory may still be accessed.
	Done() (moved int64, done bool, err error)
	// Wait waits until the transfer is finished or ctx ends, and returns the number of moved bytes.
	// The number is smaller than requested, without an error, at the end of the file or if the
	// system stopped early.
	Wait(ctx context.Context) (moved int64, err error)
	// Close releases the transfer at any time. It must not be used afterwards. The transfer's
	// memory stays in use until the transfer is done. To find out when that is, record another
	// event after the transfer.
	Close()
}
