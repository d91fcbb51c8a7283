// Package topology says where GPUs and RDMA NICs lie, by NUMA node, PCIe and NVLink, and which NICs suit a GPU. It reads the
// system's files below a root directory that is handed to it, and keeps no state.
//
// Safe for concurrent use.
package topology
