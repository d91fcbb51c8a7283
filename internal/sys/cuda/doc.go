// Package cuda binds NVIDIA's driver library, libcuda.so.1, without cgo. Load opens it and resolves every function into
// an API, a table of Go functions that its owner holds: nothing is resolved later, and nothing is global. What a driver
// lacks is an error while loading, or, for the functions that newer drivers have, a nil field.
//
// The functions are thin: they take and return Go values, and answer the driver's Result. Mapping results to errors,
// having the right context current, and knowing which memory is whose is the business of package device/cuda. A test
// may fill an API with functions of its own.
//
// # Versions
//
// A function's C signature goes with the name of its symbol: cuMemAlloc is the 32-bit one of CUDA 3, cuMemAlloc_v2 ours.
// Symbols are therefore looked up under their versioned names, which is what <cuda.h>'s macros do in C. Functions
// younger than CUDA 12.0 are asked from cuGetProcAddress together with the CUDA version whose signature is meant, as
// the driver then answers that variant or none: cuMemcpyBatchAsync has one parameter less in 13.0 than in 12.8. The test
// of the layouts compiles all signatures, sizes and constants used here against <cuda.h>.
//
// # Concurrency and threads
//
// All functions of an API are safe for concurrent use. The current context, its stack, and the stream capture mode belong
// to the calling OS thread: a caller that sets one and relies on it in a later call locks the thread meanwhile.
package cuda
