// Package stream is the one interface under which kvlane copies: a Stream takes Batches of Extents and answers with
// Tickets. stream/copy has the paths inside one machine; streamtest is the conformance suite of every implementation.
//
// Ordered streams complete as CUDA streams do: ticket n complete means that all before it are. Unordered streams
// complete ticket by ticket. A failure of an ordered stream is sticky: later Submits answer ErrBroken with the cause,
// and the stream is closed and opened anew. A batch that was cancelled, or whose dependency failed, fails alone.
//
// A ticket resolves only when nothing can touch the batch's memory any more, whatever made it resolve; where that cannot
// be proved it stays unresolved and its memory must not be reused.
package stream
