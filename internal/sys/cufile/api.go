package cufile

import "syscall"

// API is the library's functions. Load fills it; a test may fill one of its own. Fields are not to be changed while the API
// is in use. Each is named after the function that it calls, without its "cuFile", and says what differs from it.
//
// "Needs a context" means: the context that the memory or the stream belongs to is current on the calling thread.
type API struct {
	// The driver. It is one of the process; Driver is how to open and close it. Any thread, but with a context of CUDA, which the
	// first open looks at.
	DriverOpen          func() Result
	DriverClose         func() Result // _v2, which waits for what is under way; older libraries have the other alone
	DriverGetProperties func() (Properties, Result)

	// Files. Any thread; HandleRegister needs a context. The descriptor stays the caller's, until HandleDeregister.
	HandleRegister   func(fd int) (Handle, Result)
	HandleDeregister func(h Handle)

	// Buffers: memory that is pinned for direct transfers. They need its context.
	BufRegister   func(base, bytes uint64, flags int) Result
	BufDeregister func(base uint64) Result

	// Transfers block until the bytes are there, and need the context of the memory. They answer how many bytes were moved; or -1
	// with errno, or the negative of a Status.
	Read  func(h Handle, base, bytes uint64, fileOff, bufOff int64) (int64, syscall.Errno)
	Write func(h Handle, base, bytes uint64, fileOff, bufOff int64) (int64, syscall.Errno)

	// Optional, of CUDA 12.2: transfers that a stream runs. They need its context.
	ReadAsync  func(h Handle, base uint64, w Words, stream uintptr) Result
	WriteAsync func(h Handle, base uint64, w Words, stream uintptr) Result

	// Optional. Any thread.
	GetVersion       func() (int, Result)           // 1000*major + 10*minor, mostly
	GetParameterBool func(param int) (bool, Result) // of the configuration, CUDA 12.9
}
