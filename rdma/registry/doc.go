// Package registry keeps the memory that RDMA NICs may reach: a protection domain on each NIC for each trust domain, shared by all streams
// within it, and the memory regions registered with it. Sets of Devices share the open NICs; others open their own.
//
// # Model
//
// A Set is a trust domain, and has each NIC of a provider once. A Registry is one of them with its registered memory. Register
// takes whole mem.Regions, with the rights and the address that work requests see: host memory at its CPU address; device memory as a dma-buf where an Exporter and the NIC have that, else
// through the kernel's peer memory module. Registering pins pages and takes milliseconds, so it is done ahead of
// transfers, all regions of a call or none.
//
// Acquire finds the registered memory that holds an extent and grants what is needed, and keeps it registered until Release: whoever has a request in
// flight holds a reference, and Unregister waits for it. Memory is found by its address, so an extent may name another
// mem.Region over the same bytes, and begin anywhere inside.
//
// Watch tells of the device's asynchronous events, each of which the verbs tell only once.
//
// # Concurrency
//
// All methods are safe for concurrent use. Acquire, Release and Covers take no lock, wait for nothing and allocate nothing
// unless they fail: they read a table that every change copies. Register, Unregister and Close are control calls that may
// be in the kernel for long; no lock is held there, but for Set.NIC, which must not open a NIC twice.
package registry
