// Package stream is the one interface under which kvlane copies: a Stream takes Batches of Extents and answers with
// Tickets. stream/copy has the paths inside one machine, stream/file those to files; streamtest is the conformance suite of every
// implementation.
//
// Ordered streams complete as CUDA streams do: ticket n complete means that all before it are. A failure is
// sticky: what is behind it and later Submits answer ErrBroken with the cause, and the stream is closed and opened anew. A batch that was
// cancelled, or whose dependency failed, fails alone. Where a batch that failed was to write there may be anything, behind a failure too:
// the hardware may have begun with it.
//
// Unordered streams, as those of files are, copy batches in any order and complete them ticket by ticket, but for what a
// batch names as After. A failure is its batch's alone: those beside it and behind it are copied, and the stream goes on.
//
// A ticket resolves only when nothing can touch the batch's memory any more, whatever made it resolve; where that cannot
// be proved it stays unresolved and its memory must not be reused.
package stream
