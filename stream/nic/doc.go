// Package nic is the ordered stream that copies by an RDMA NIC: between host and device memory, and within either, over
// queue pairs that are connected to themselves. It reaches what is registered with its NICs (package rdma/registry).
//
// # Requests
//
// A copy from host to device is an RDMA write, one from device to host an RDMA read: the device's side is the remote one.
// Copies within one sort of memory are writes. Neighbouring copies become one request: where both sides go on, or where the
// remote side does and the local one takes another scatter-gather entry. With a single queue pair, copies of which at least
// half are neighbours on the local side only therefore go the other way round: loads from blocks in order on the host are
// RDMA reads that scatter, and dumps to them are RDMA writes that gather. Longer copies are split at Options.RequestBytes,
// which is at most the port's max_msg_sz. Requests of a batch for one queue pair are posted as a chain, with one doorbell
// and one completion, of its last request.
//
// With several queue pairs, of one NIC or more, memory is striped over them by destination address. So whatever writes
// the same bytes travels by the same queue pair.
//
// # Order
//
// A batch has landed when its chains have completed, in whatever order; the rest of its life is that of package ordered. What
// is in flight at once must not depend on the order, since a NIC reads the source of a request before earlier requests have
// landed. Batches that write the same sort of memory by the same opcode and read
// another (loads after loads, dumps after dumps) are in flight together: one queue pair's writes to the same bytes land in
// order. Any other batch waits until those before it have completed.
//
// # Telling
//
// Who asks for it (mem.Paged.Landed) is told of page groups while a batch is copied. Where at least 256 KiB of them end, the last
// request on each queue pair asks for a completion of its own. Groups have landed when every queue pair has completed what was built
// for it up to there, and are told of after the flush that a ticket would wait for, one flush for all that has landed by then. Of a
// batch of which something failed nothing is told, and of the last group its ticket tells.
//
// # Workers
//
// A lock guards queue pairs and completion queues. Submit posts the first requests of its batch itself, and Ticket.Wait polls
// for a while; the goroutine of the ordered stream posts the rest. For each NIC a completer sleeps in the completion channel,
// and a guard looks after what no completion tells. Whoever takes completions off tells of page groups, without the lock.
//
// # Failures
//
// A failed request breaks the stream: its batch fails with a *RequestError, everything later with errdefs.ErrBroken and
// that cause. The queue pair flushes what was posted, and tickets resolve as their last request has. Where that proves
// nothing (a post that was refused half-way, a lost completion queue, no completion for Options.Timeout, an asynchronous
// event of a failure that no completion tells) the queue pairs are moved to the error state, and those that do not flush
// their requests then are reset: when that has succeeded nothing touches memory any more. Until it has, tickets stay
// unresolved. What completes well in the meantime was copied, and its ticket says so.
package nic
