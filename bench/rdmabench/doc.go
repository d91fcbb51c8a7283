// Package rdmabench measures what an RDMA NIC does without a stream over it, through the contract of package rdma, and so
// with a NIC of the machine (rdma/ibv) as with one in software (rdma/soft), whose name every report has.
//
// Run measures writes, reads and sends over two queue pairs of one NIC that are connected to each other, in the columns of
// perftest: one process is both sides. The local side is host memory, the remote one is whatever memory it is given, of a
// GPU for example. Bandwidth is of a queue that is kept full, latency of one message at a time:
//
//   - a write's is half of a round trip of two writes with immediate data, as ib_write_lat's with --write_with_imm, since
//     nobody can wait for bytes in a GPU's memory,
//   - a send's is half of a round trip of two sends, as ib_send_lat's,
//   - a read's is from posting it until its completion, as ib_read_lat's.
//
// Bytes are checked at every size: what was written or sent is read back, and what is read was written before.
//
// A Channel copies batches of extents by requests that it posts straight on a queue pair, for bench.NICChannel.
//
// Both poll without pause: they occupy a processor, and are each for one goroutine at a time.
package rdmabench
