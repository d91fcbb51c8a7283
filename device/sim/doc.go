// Package sim is a GPU in software, for machines that have none and for tests that need one to misbehave. It is honest:
//
//   - Its addresses are made up. They lie where no CPU address can, the device address of pinned memory has nothing to do
//     with its CPU address, and no address is used twice, but for Options.HostAddresses. Device memory has no CPU view.
//   - Queues are asynchronous: each has a goroutine that does the work later, in order. Pages and descriptors are read
//     when a kernel runs, not when it is launched.
//   - Fresh device memory holds PoisonFresh, and freed pinned memory PoisonFreed. A use after free, an address outside
//     every allocation and a misaligned argument are errors: of the call where the call can know, else sticky errors of
//     the queue, as a GPU's illegal address is. Bytes written by the CPU into freed pinned memory, and events used after
//     their Close, are reported by Device.Close.
//   - Memory, page-locked memory and single registrations have settable limits; latency and bandwidth are modelled on a
//     clock that may be injected; package fault says which operations fail, corrupt, stall or take longer.
//   - With Options.Interleave, one operation of one queue runs at a time, in an order drawn from a seed.
//
// # Concurrency
//
// Device and Event are safe for concurrent use. A Queue has one user at a time, but for the calls of a
// device.HostStream, whose stream it plays. Goroutines belong to the queue, or the interleaving device, that started them and are joined by
// its Close. Device memory is guarded by one lock, which operations hold for reading while they run: Alloc and Free
// wait for running operations, never for enqueued ones.
package sim
