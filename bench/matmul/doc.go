// Package matmul is a matrix product that keeps a GPU's multiprocessors busy while copies are measured beside it: bfloat16
// matrices with random values, sums in 32 bits, by cublasLt, on a queue of its own in the context
// that the copies use. It implements interference.Product, on devices whose queues have a CUstream.
//
// A Product has one user at a time.
package matmul
