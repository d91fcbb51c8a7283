package cufile

import "syscall"

// API is a table of the library's functions. Load sets the fields; tests may set their own
// functions. The fields must not change while the API is in use. Each field is named after its C
// function without the prefix "cuFile"; comments describe differences.
//
// "Needs a context" means that the context of the memory or the stream must be current on the
// calling thread.
type API struct {
	// Driver. There is one for each process; use the type Driver to open and close it. The first
	// open uses the calling thread's CUDA context.
	DriverOpen func() Result
	// DriverClose is cuFileDriverClose_v2, which waits for transfers, or cuFileDriverClose of older
	// libraries.
	DriverClose         func() Result
	DriverGetProperties func() (Properties, Result)

	// Files. HandleRegister needs a context. The descriptor must stay open until HandleDeregister.
	HandleRegister   func(fd int) (Handle, Result)
	HandleDeregister func(h Handle)

	// Buffers: memory that is pinned for direct transfers. The functions need its context.
	BufRegister   func(base, bytes uint64, flags int) Result
	BufDeregister func(base uint64) Result

	// Transfers. They block until the bytes are transferred and need the context of the memory.
	// They return the number of bytes, -1 with errno, or a negated Status.
	Read  func(h Handle, base, bytes uint64, fileOff, bufOff int64) (int64, syscall.Errno)
	Write func(h Handle, base, bytes uint64, fileOff, bufOff int64) (int64, syscall.Errno)

	// Optional, since CUDA 12.2: transfers in a stream. They need its context.
	ReadAsync  func(h Handle, base uint64, w Words, stream uintptr) Result
	WriteAsync func(h Handle, base uint64, w Words, stream uintptr) Result

	// Optional. They need no context.
	GetVersion func() (int, Result) // usually 1000*major + 10*minor
	// parameter of the configuration; since CUDA 12.9
	GetParameterBool func(param int) (bool, Result)
}
