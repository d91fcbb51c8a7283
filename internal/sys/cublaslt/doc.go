// Package cublaslt computes matrix products with NVIDIA's cublasLt, which it loads at run time.
// Only benchmarks use it.
//
// The constants and structures are from cublasLt.h and library_types.h. They are the same in CUDA
// 12 and 13. A Library is safe for concurrent use. A Handle and its Products must be used by one
// goroutine at a time. Every call except Load requires that the context of the memory and streams
// is current on the calling thread. No call changes the current context.
package cublaslt
