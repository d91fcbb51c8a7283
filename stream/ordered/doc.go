// Package ordered manages the batches of an ordered stream, independently of the hardware that
// copies them. Such a stream has a Stream of this package and implements Work, which submits a
// batch to the hardware and releases its resources.
//
// # Life of a batch
//
// Stream.Submit accepts a batch. At most Options.Depth batches and calls are unresolved. A full
// stream blocks the caller until its context ends, and a refused batch has no effect. The batch
// receives its number and its ticket, and is appended to the backlog. If the backlog was empty,
// Submit issues a part of the batch itself, which saves a switch to another goroutine. A goroutine
// of the stream issues the rest.
//
// The head of the backlog is issued after its dependencies have resolved, part by part (Work.Issue)
// as the hardware has space. It delays all batches after it: the hardware order is the backlog
// order. A completely issued batch is in flight.
//
// The oldest batch in flight resolves when all its parts have completed (Batch.RemoveInFlight). Therefore
// tickets resolve in order, even if the hardware completes parts in another order, and no hardware
// accesses a batch's memory afterwards. A goroutine that observes a completion calls
// Stream.ResolveCompleted. The owner of the stream decides how to observe completions.
//
// # Failures
//
// Issuing stops if a batch is canceled, if a dependency fails, or if the stream closes before the
// batch has started. The batch resolves in order, after its issued parts have completed. Only this
// batch fails.
//
// A hardware failure (Batch.Fail) breaks the stream. All later batches fail with errdefs.ErrBroken
// and that failure as the cause, and no further batch is accepted or issued. Of several failures,
// the first in stream order is the cause. A failure that belongs to no batch (Stream.Break) counts
// as one of the oldest unresolved batch. Close returns a failure that no ticket reports.
//
// A batch is lost if its completion cannot be observed (Batch.Lose). It and all later batches are
// quarantined: they stay unresolved and keep their memory until Options.Stop has stopped the
// hardware during Close.
//
// # Concurrency
//
// One goroutine at a time issues, and one resolves; each may be any goroutine. This package holds
// no lock when it calls Work.
package ordered
