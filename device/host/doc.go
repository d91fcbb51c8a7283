// Package host is a device without a GPU: its memory is the process's own memory at the same
// addresses, and the CPU copies. It is for engines that compute on CPUs, for laptops and for CI.
// Unlike device/sim, it moves real bytes at the machine's real speed.
//
//   - The device address of memory is its CPU address. A KV cache that the host program has
//     allocated, such as a tensor of a framework, is named by the address of its bytes. AllocHost
//     returns a mapping outside the Go heap with both addresses, in which a Go program can keep its
//     KV cache. As on a GPU, memory of Alloc has no CPU address.
//   - Pinned memory keeps its address, but is not page-locked.
//   - An address without memory is a sticky error of the queue, like an illegal address on a GPU.
//     As with any pointer, the address of other memory cannot be detected.
//   - Queues copy in batches and run the kernels of package device, so that the copies of a load
//     compute its sums. Several goroutines share long work.
//
// # Concurrency
//
// Device and Event are safe for concurrent use. A Queue has one user at a time. While a queue has
// work, a goroutine runs it. Device.Close waits for these goroutines.
package host
