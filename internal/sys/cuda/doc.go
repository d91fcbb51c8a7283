// Package cuda binds NVIDIA's driver library, libcuda.so.1, without cgo. Load opens it and resolves
// all functions into an API, a table of Go functions. There is no lazy resolution and no global
// state. If a function is missing, Load returns an error; functions that only newer drivers have
// are nil.
//
// The functions only convert arguments and results to Go types. Package device/cuda maps Results to
// errors, sets the current context, and tracks the owners of memory. Tests may use an API with
// their own functions.
//
// # Versions
//
// The C signature of a function depends on the name of its symbol: cuMemAlloc is the 32-bit
// function of CUDA 3, cuMemAlloc_v2 the current one. Symbols are therefore looked up by their
// versioned names, as the macros in <cuda.h> do. Functions newer than CUDA 12.0 are requested from
// cuGetProcAddress with the CUDA version of the signature; the driver returns that variant or none.
// For example, cuMemcpyBatchAsync has one parameter less in 13.0 than in 12.8. A test compiles all
// signatures, sizes and constants against <cuda.h>.
//
// # Concurrency and threads
//
// All functions of an API are safe for concurrent use. The current context, its stack, and the
// stream capture mode belong to the calling OS thread. A caller that sets one of them for a later
// call must lock the goroutine to its thread until then.
package cuda
