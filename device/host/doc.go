// Package host is a device without a GPU: its memory is the process's own, at the process's own addresses, and its copies are the CPU's. It
// is for engines that compute on CPUs, and for laptops and CI. What an engine on it moves are real bytes at the machine's real speed, which
// tells it from device/sim.
//
//   - The device address of memory is its CPU address. A KV cache that the host program has allocated, such as a
//     tensor of a framework, is named by the address of its bytes. Memory of AllocHost is a mapping outside the Go heap
//     with both addresses: a Go program keeps its KV cache there. Memory of Alloc has no CPU view, as on a GPU.
//   - Pinned memory is memory that stays where it is: nothing is locked.
//   - An address where there is no memory is a sticky error of the queue, as a GPU's illegal address is. One that belongs to something else
//     cannot be told from a right one, as with any pointer.
//   - Queues copy in batches and run the kernels of package device, so that a load's sums come from its copy. Long work is divided
//     over a few goroutines.
//
// # Concurrency
//
// Device and Event are safe for concurrent use. A Queue has one user at a time; a goroutine runs its work while there is some, and Device.Close
// joins them all.
package host
