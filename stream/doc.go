// Package stream defines the interface of all copies: a Stream accepts Batches of Extents and
// returns Tickets. stream/copy has the paths within one machine, stream/nic those by RDMA NICs, and
// stream/file those to files. streamtest is the conformance suite of every implementation.
//
// Ordered streams complete as CUDA streams do: if ticket n has completed, all before it have. A
// failure breaks the stream: batches behind it and later Submits return ErrBroken with the cause,
// and the stream must be closed and opened anew. A batch that was canceled, or whose dependency
// failed, fails alone. The destination of a failed batch, and of batches behind a failure, has
// undefined content.
//
// Unordered streams, such as those of files, copy batches in any order, except after the
// dependencies that a batch names in After. A failed batch fails alone, and the stream continues.
//
// A ticket resolves only when the batch's memory is no longer accessed. If that cannot be proved,
// it stays unresolved and its memory must not be reused.
package stream
