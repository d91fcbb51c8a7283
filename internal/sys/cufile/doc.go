// Package cufile binds NVIDIA's library for GPUDirect Storage, libcufile.so.0, without cgo. Load
// opens it and resolves its functions into an API, a table of Go functions. There is no lazy
// resolution and no global state. If a function is missing, Load returns an error; functions that
// only newer versions have are nil.
//
// The functions only convert arguments and results to Go types. Driver counts the users of the
// library's driver, which exists once per process, and keeps the error of a failed open.
//
// # Threads and contexts
//
// All functions of an API are safe for concurrent use. Some need the CUDA context of the memory or
// the stream to be current on the calling OS thread; package device/cuda ensures this. The library
// has its own threads, so it is never unloaded.
//
// # The words of asynchronous transfers
//
// ReadAsync and WriteAsync take the addresses of four words: size, offset in the file, offset in
// the buffer, and the result. The library reads the first three when the stream reaches the
// transfer, and writes the fourth when the transfer ends. The words must be in pinned memory
// outside the Go heap and must not be freed before an event after the transfer has completed.
// Package device/storage ensures this.
package cufile
