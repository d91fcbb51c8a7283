// Package cuda binds NVIDIA's driver library, libcuda.so.1, without cgo. Load opens it and
// resolves every function into an API, a table of Go functions. There is no later resolution and
// no global state. A missing function is an error of Load, or a nil field for functions of newer
// drivers.
//
// The functions are thin: they take and return Go values, and return the driver's Result. Package
// device/cuda maps results to errors, sets the current context, and tracks the owners of memory.
// Tests may fill an API with their own functions.
//
// # Versions
//
// The C signature of a function depends on the name of its symbol: cuMemAlloc is the 32-bit
// function of CUDA 3, cuMemAlloc_v2 the current one. Symbols are therefore looked up by their
// versioned names, like the macros of <cuda.h> do. Functions newer than CUDA 12.0 are requested
// from cuGetProcAddress with the CUDA version of the signature; the driver then returns that
// variant or none. For example, cuMemcpyBatchAsync has one parameter less in 13.0 than in 12.8.
// The test of the layouts compiles all signatures, sizes and constants against <cuda.h>.
//
// # Concurrency and threads
//
// All functions of an API are safe for concurrent use. The current context, its stack, and the
// stream capture mode belong to the calling OS thread. A caller that sets one for a later call
// locks the thread in between.
package cuda
