// Package soft is an RDMA NIC in software, for machines that have none and for tests that need one to misbehave. The
// devices of one Provider see one another, and none outside of it. It keeps the rules that hardware keeps:
//
//   - Queues have the depth that was asked for. A place in a send or receive queue is free again when the completion of
//     its request, or of a later one, has been polled, not when the bytes have moved. A completion queue that overflows is
//     lost, and the queue pairs on it with it.
//   - Requests of one queue pair start, land and complete in order; those of different queue pairs in any order.
//   - Keys, bounds, access flags and protection domains are checked when a request starts. Local and remote keys of a
//     memory region differ, and no key is used twice in a row.
//   - A failure moves the queue pair to the error state, and what was posted is flushed. A peer that does not answer is
//     tried again until the retries are used up, and so is one that has no receive posted.
//   - Memory is touched only between the posting of a request and its completion, and never after Close of its region.
//
// It is stronger than hardware where that costs nothing: bytes of one queue pair land in order, so that SendFence changes
// nothing but with Options.Schedule, and without that MaxRDAtomic bounds nothing but is not allowed to be zero for reads. Paths
// lose no packets.
//
// # Bytes
//
// Bytes are moved by a Mover: CPUMover copies between what the CPU reaches, and whoever has a GPU injects a Mover that
// reaches its memory.
//
// # Concurrency
//
// Every device has a goroutine, its engine, that executes requests, hands their bytes to the Mover and completes them;
// Device.Close joins it. With Options.Schedule one engine serves all devices of the provider and takes one small step
// at a time, in an order drawn from a seed. Callers of PostSend, PostRecv and Poll never wait for an engine.
package soft
