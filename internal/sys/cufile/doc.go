// Package cufile binds NVIDIA's library of GPUDirect Storage, libcufile.so.0, without cgo. Load
// opens it and resolves its functions into an API, a table of Go functions. There is no later
// resolution and no global state. A missing function is an error of Load if every version has it;
// a newer one is a nil field.
//
// The functions are thin: they take and return Go values, and return the library's Result. Driver
// counts the users of the library's driver, of which a process has one, and keeps the error of a
// failed open.
//
// # Threads and contexts
//
// All functions of an API are safe for concurrent use. Some need the CUDA context of the memory or
// the stream to be current on the calling OS thread; package device/cuda takes care of that. The
// library has threads of its own, so it is never unloaded.
//
// # The words of asynchronous transfers
//
// ReadAsync and WriteAsync take the addresses of four words: size, offset in the file, offset in
// the buffer, and the result. The library reads the first three when the stream reaches the
// transfer, and writes the fourth at its end. The words are in pinned memory, never on the Go
// heap, and stay until an event after the transfer has completed. Package device/storage takes
// care of that.
package cufile
