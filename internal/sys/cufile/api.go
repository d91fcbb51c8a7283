package cufile

import "syscall"

// API is the functions of the library. Load fills it in; tests may fill in their own. Fields must
// not change while the API is in use. Each field has the name of its function without "cuFile", and
// its comment states differences.
//
// "Needs a context" means that the context of the memory or the stream is current on the calling
// thread.
type API struct {
	// The driver. A process has one; use Driver to open and close it. Any thread with a CUDA
	// context, which the first open uses.
	DriverOpen func() Result
	// _v2, which waits for transfers; older libraries have only the other
	DriverClose         func() Result
	DriverGetProperties func() (Properties, Result)

	// Files. Any thread; HandleRegister needs a context. The caller keeps the descriptor open until
	// HandleDeregister.
	HandleRegister   func(fd int) (Handle, Result)
	HandleDeregister func(h Handle)

	// Buffers: memory that is pinned for direct transfers. They need its context.
	BufRegister   func(base, bytes uint64, flags int) Result
	BufDeregister func(base uint64) Result

	// Transfers block until the bytes are moved, and need the context of the memory. They return
	// the number of moved bytes, -1 with errno, or the negative of a Status.
	Read  func(h Handle, base, bytes uint64, fileOff, bufOff int64) (int64, syscall.Errno)
	Write func(h Handle, base, bytes uint64, fileOff, bufOff int64) (int64, syscall.Errno)

	// Optional, CUDA 12.2: transfers in a stream. They need its context.
	ReadAsync  func(h Handle, base uint64, w Words, stream uintptr) Result
	WriteAsync func(h Handle, base uint64, w Words, stream uintptr) Result

	// Optional. Any thread.
	GetVersion       func() (int, Result)           // usually 1000*major + 10*minor
	GetParameterBool func(param int) (bool, Result) // of the configuration, CUDA 12.9
}
