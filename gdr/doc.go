// Package gdr opens the RDMA NICs that copy between host and GPU memory, connected to themselves (GPUDirect RDMA): it chooses those
// near a GPU, registers memory with them and opens streams over them. NICs are the machine's, through libibverbs, or in software,
// whose bytes copy streams of the device move. A build with the tag nonic has NICs in software only.
//
// All methods of NICs are safe for concurrent use. It keeps no package-level state.
package gdr
