// Package topology finds the RDMA NIC that suits a GPU, by where both sit on PCIe, and the port, GID and MTU of a NIC.
// It reads the system's files below a root directory that is handed to it, and keeps no state.
//
// Safe for concurrent use.
package topology
