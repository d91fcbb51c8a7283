// Package topology finds the locations of GPUs and RDMA NICs (NUMA node, PCIe, NVLink), and the
// NICs nearest to a GPU. It reads sysfs from a given directory.
//
// It keeps no state and is safe for concurrent use.
package topology
