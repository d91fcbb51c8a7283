// Package registry has the memory that RDMA NICs may reach. It keeps a protection domain on each
// NIC for each trust domain, shared by all streams in it, and the memory regions registered there.
// Sets of the same Devices share the open NICs.
//
// # Model
//
// A Set is a trust domain with each NIC of a provider at most once. A Registry is one of these NICs
// with its registered memory. Register takes whole mem.Regions with rights and the address for work
// requests. Host memory is registered at its CPU address. Device memory is registered as a dma-buf
// if the Exporter and the NIC support that, else through the kernel's peer memory module.
// Registering pins pages and takes milliseconds, so it is done before transfers, for all regions of
// a call or none.
//
// Acquire finds the registered memory of an extent with the necessary rights and keeps it
// registered until Release. A request in flight holds such a reference, and Unregister waits for
// it. Memory is found by address: an extent may name another mem.Region with the same bytes and
// begin anywhere inside.
//
// Watch reports the device's asynchronous events. The verbs report each of them only once.
//
// # Concurrency
//
// All methods are safe for concurrent use. Acquire, Release and Covers take no lock, do not wait,
// and allocate only when they fail: they read a table that every change copies. Register,
// Unregister and Close may spend a long time in the kernel. They hold no lock there, except
// Set.NIC, which must not open a NIC twice.
package registry
