// Package cufile binds NVIDIA's library of GPUDirect Storage, libcufile.so.0, without cgo. Load opens it and resolves its
// functions into an API, a table of Go functions that its owner holds: nothing is resolved later. What a library lacks that
// every version has is an error while loading; what came later is a nil field.
//
// The functions are thin: they take and return Go values and answer the library's Result. Driver counts who uses the library's
// driver, which a process has one of, and remembers why it did not open.
//
// # Threads and contexts
//
// All functions of an API are safe for concurrent use. Those that say so need the CUDA context of the memory, or of the stream,
// to be current on the calling OS thread; which one that is, is the business of package device/cuda. The library has threads of
// its own, so it is never unloaded.
//
// # The words of asynchronous transfers
//
// ReadAsync and WriteAsync are given the addresses of four words: size, offset in the file, offset in the buffer, and the result.
// The library reads the first three when the stream has come to the transfer, and writes the fourth when it is done. The words
// lie in pinned memory, never on the Go heap, and stay until an event behind the transfer is done: package device/storage sees
// to that.
package cufile
