// Package soft implements RDMA NICs in software, for machines without one and for tests with
// faults. The devices of one Provider can connect to each other only. They behave like hardware:
//
//   - Queues have the requested depth. An entry of a send or receive queue is freed when its
//     completion, or a later one, is polled, not when the bytes have moved. A completion queue that
//     overflows is lost together with its queue pairs.
//   - Requests of one queue pair start, move their bytes and complete in order. Requests of
//     different queue pairs are unordered.
//   - Keys, bounds, access flags and protection domains are checked when a request starts. The
//     local and the remote key of a memory region differ, and no key is used twice in a row.
//   - A failure moves the queue pair to the error state and flushes the posted requests. Requests
//     to a peer that does not respond or has no receive posted are retried up to the limit.
//   - Memory is accessed only between the posting of a request and its completion, and never after
//     Close of its region.
//
// There are differences to hardware. Bytes of one queue pair arrive in order, so SendFence has an
// effect only with Options.Schedule. Without a schedule, MaxRDAtomic is no limit, but must not be
// zero for reads. Packets are never lost.
//
// # Bytes
//
// A Mover moves the bytes. CPUMover copies memory with a CPU address. Device memory needs another
// Mover.
//
// # Concurrency
//
// Every device has an engine: a goroutine that executes requests, passes their bytes to the Mover
// and completes them. Device.Close waits for it. With Options.Schedule, one engine serves all
// devices of the provider and takes one step at a time, in a random order determined by a seed.
// PostSend, PostRecv and Poll never wait for an engine.
package soft
