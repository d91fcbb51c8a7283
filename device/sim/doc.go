// Package sim is a simulated GPU, for machines without a GPU and for tests in which a GPU must
// fail. It models a GPU's behaviour strictly:
//
//   - Its addresses are invalid for the CPU. The device address of pinned memory is unrelated to
//     its CPU address, and no address is used twice. Options.HostAddresses changes both. Device
//     memory has no CPU address.
//   - Queues are asynchronous: a goroutine per queue does the work later, in order. Pages and
//     descriptors are read when a kernel runs, not when it is launched.
//   - Fresh device memory contains PoisonFresh, and freed pinned memory contains PoisonFreed. A use
//     after free, an address outside every allocation and a misaligned argument are errors. The
//     call returns them if it can detect them. Otherwise they are sticky errors of the queue, like
//     an illegal address on a GPU. Device.Close reports CPU writes to freed pinned memory, and
//     events that were used after their Close.
//   - Device memory, page-locked memory and single registrations have configurable limits. A model
//     of latency and bandwidth uses a clock that tests may inject. A fault.Plan selects the
//     operations that fail, corrupt data, stall or take longer.
//   - With Options.Interleave, one operation of one queue runs at a time, in an order drawn from a
//     seed.
//
// # Concurrency
//
// Device and Event are safe for concurrent use. A Queue has one user at a time, apart from the
// calls of a device.HostStream that the queue simulates. Goroutines belong to the queue, or to the
// interleaving device, that started them; its Close waits for them. One lock guards device memory.
// Running operations hold it for reading, so Alloc and Free wait for running operations but not for
// enqueued ones.
package sim
