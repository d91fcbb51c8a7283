// Package matmul runs matrix products that keep the multiprocessors of a GPU busy while other work
// is measured. The matrices are bfloat16 with random values and 32-bit accumulation. It uses
// cublasLt on a separate queue. It implements interference.Product for devices whose queues are
// CUstreams.
//
// A Product is not safe for concurrent use.
package matmul
