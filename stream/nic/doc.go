// Package nic implements the ordered stream that copies by RDMA NICs. It copies between host and
// device memory, and within either, over queue pairs that are connected to themselves. It copies
// only memory that is registered with its NICs (package rdma/registry).
//
// # Requests
//
// A copy from host to device is an RDMA write, a copy from device to host an RDMA read: the device
// is the remote side. Copies within one class of memory are writes. Adjacent copies become one
// request if both sides continue, or if the remote side continues and the local side uses another
// scatter-gather entry. With a single queue pair, copies are reversed if at least half of them are
// adjacent on the local side only. Loads from blocks in order on the host are then RDMA reads that
// scatter, and dumps to them are RDMA writes that gather. Longer copies are split at
// Options.RequestBytes. Requests of a batch for one queue pair are posted as a chain, with one
// doorbell, and one completion of the last request.
//
// With several queue pairs, memory is striped over them by destination address. Writes to the same
// bytes use the same queue pair.
//
// # Order
//
// A batch has completed when its chains have, in any order. Package ordered implements the rest of
// the life cycle. Batches that are in flight together must not depend on their order, because a NIC
// may read the source of a request before earlier requests complete. Batches that write the same
// class of memory by the same opcode and read another class (loads after loads, dumps after dumps)
// may be in flight together: writes of one queue pair to the same bytes complete in order. Any
// other batch waits until all earlier batches have completed.
//
// # Reports
//
// If mem.Paged.Completed is set, the stream reports completed page groups while a batch is copied.
// After at least 256 KiB of groups, the last request on each queue pair is signaled. Groups have
// completed when every queue pair has completed the requests built for them. As with tickets, a
// report is made after the writes were flushed. One flush serves all groups that completed before
// it. A failed batch reports no further groups. The ticket reports the last group.
//
// # Concurrency
//
// A lock guards queue pairs and completion queues. Submit posts the first requests of its batch,
// and Ticket.Wait polls for a short time. The goroutine of the ordered stream posts the rest. One
// goroutine for each NIC waits on the completion channel, and one detects failures without
// completions. The goroutine that polls completions also reports page groups, without the lock.
//
// # Failures
//
// A failed request breaks the stream. Its batch fails with a *RequestError, later batches with
// errdefs.ErrBroken and that cause. The queue pair flushes posted requests, and tickets resolve
// when their last request has completed. Completions may be missing after a refused post, a lost
// completion queue, a timeout (Options.Timeout) or an asynchronous event. The stream then moves
// queue pairs to the error state, and resets those that do not flush their requests. After a
// successful reset no request accesses memory. Until then tickets stay unresolved. Batches that
// complete meanwhile succeed.
package nic
