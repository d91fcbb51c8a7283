// Package stream defines the interface of all copies: a Stream accepts Batches of Extents and
// returns Tickets. stream/copy has the paths within one machine, stream/nic those by RDMA NICs, and
// stream/file those to files. streamtest is the conformance suite of every implementation.
//
// Ordered streams complete in order, like CUDA streams: if ticket n has completed, all earlier ones
// have. A failure breaks the stream: later batches and Submits return ErrBroken with the cause, and
// the stream must be closed and replaced. If a batch was canceled, or its dependency failed, only
// that batch fails. The destination of a failed batch, and of the batches after a failure, is
// undefined.
//
// Unordered streams, such as those of files, copy batches in any order, except after the
// dependencies in Batch.After. A failure affects only its batch, and the stream continues.
//
// A ticket resolves only when the batch's memory is no longer accessed. If that cannot be
// determined, the ticket stays unresolved and its memory must not be reused.
package stream
