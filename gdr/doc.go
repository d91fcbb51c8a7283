// Package gdr opens the RDMA NICs that copy between host and GPU memory (GPUDirect RDMA). It
// chooses NICs near a GPU, registers memory with them and opens streams over queue pairs connected
// to themselves. NICs are those of the machine, through libibverbs, or NICs in software, whose
// bytes are moved by copy streams. A build with the tag nonic has only NICs in software.
//
// All methods of NICs are safe for concurrent use. The package has no global state.
package gdr
