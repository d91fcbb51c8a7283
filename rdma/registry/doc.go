// Package registry manages the memory that RDMA NICs may access. For each trust domain it keeps one
// protection domain on each NIC and the memory regions registered in it. All streams of the trust
// domain share these.
//
// # Model
//
// A Set is a trust domain. It has each NIC of a provider at most once. A Registry is one NIC of a
// Set with its registered memory. Sets of the same Devices share the open NICs. Register registers
// whole mem.Regions with access flags and the address for work requests. Host memory is registered
// at its CPU address. Device memory is registered as a dma-buf if the Exporter and the NIC support
// that, otherwise through the kernel's peer memory module. Registering pins pages and takes
// milliseconds, so do it before transfers. One call registers all of its regions or none.
//
// Acquire finds the registered memory that contains an extent and permits the requested access. It
// takes a reference that keeps the memory registered until Release. Unregister waits for all
// references. Acquire searches by address, so the extent may belong to another mem.Region of the
// same memory.
//
// The verbs report each asynchronous event of a device only once. Watch passes it to all watchers.
//
// # Concurrency
//
// All methods are safe for concurrent use. Acquire, Release and Covers take no lock, do not wait,
// and allocate only when they fail: they read a table that every change copies. Register,
// Unregister and Close may spend a long time in the kernel. They hold no lock during these calls.
package registry
