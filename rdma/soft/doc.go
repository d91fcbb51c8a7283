// Package soft is an RDMA NIC in software, for machines without one and for tests with faults. The
// devices of one Provider reach each other and no others. It follows the rules of hardware:
//
//   - Queues have the requested depth. The place of a request in a send or receive queue is free
//     when its completion, or a later one, has been polled, not when the bytes have moved. A
//     completion queue that overflows is lost together with its queue pairs.
//   - Requests of one queue pair start, move their bytes and complete in order. Those of different
//     queue pairs have no order.
//   - Keys, bounds, access flags and protection domains are checked when a request starts. The
//     local and the remote key of a memory region differ, and no key is used twice in a row.
//   - A failure moves the queue pair to the error state and flushes the posted requests. Requests
//     to a peer that does not answer, or has no receive posted, are retried until the limit.
//   - Memory is touched only between the posting of a request and its completion, and never after
//     Close of its region.
//
// It is stricter than hardware in some points. Bytes of one queue pair arrive in order, so
// SendFence matters only with Options.Schedule. Without a schedule, MaxRDAtomic limits nothing, but
// must not be zero for reads. Paths lose no packets.
//
// # Bytes
//
// A Mover moves the bytes. CPUMover copies memory that the CPU reaches. For device memory, pass a
// Mover that reaches it.
//
// # Concurrency
//
// Every device has an engine: a goroutine that executes requests, passes their bytes to the Mover
// and completes them. Device.Close waits for it. With Options.Schedule, one engine serves all
// devices of the provider and takes one small step at a time, in an order drawn from a seed.
// Callers of PostSend, PostRecv and Poll never wait for an engine.
package soft
