// Package gdr opens RDMA NICs for copies between host and GPU memory (GPUDirect RDMA). It chooses
// NICs near a GPU, registers memory with them and opens streams over loopback queue pairs. The NICs
// are hardware, used through libibverbs, or software NICs, which use copy streams. A build with the
// tag nonic supports software NICs only.
//
// All methods of NICs are safe for concurrent use. The package has no global state.
package gdr
