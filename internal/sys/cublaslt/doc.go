// Package cublaslt runs matrix products by NVIDIA's cublasLt, which is loaded at run time. Only
// benchmarks use it.
//
// The constants and structures are from cublasLt.h and library_types.h of CUDA 12 and 13, which
// agree in them. Library is safe for concurrent use; a Handle and its Products have one user at a
// time. Every call but Load needs the context of the device's memory and streams to be current on
// the calling thread, and none changes the current context.
package cublaslt
