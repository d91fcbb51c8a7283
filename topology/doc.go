// Package topology finds the places of GPUs and RDMA NICs (NUMA node, PCIe, NVLink), and the NICs
// that are nearest to a GPU. It reads sysfs below a given root directory, and keeps no state.
//
// Safe for concurrent use.
package topology
