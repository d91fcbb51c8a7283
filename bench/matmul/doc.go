// Package matmul runs a matrix product that keeps the multiprocessors of a GPU busy while other
// work is measured: bfloat16 matrices with random values and sums in 32 bits, by cublasLt, on its
// own queue in the context of the device. It implements interference.Product on devices whose
// queues have a CUstream.
//
// A Product is not safe for concurrent use.
package matmul
