// Package ordered manages the batches of an ordered stream, independently of the hardware that
// copies them. Such a stream has a Stream of this package and implements Work, which submits a
// batch to the hardware and releases its resources.
//
// # Life of a batch
//
// Stream.Submit accepts a batch. At most Options.Depth batches and calls are unresolved. A full
// stream blocks the caller until its context ends, and a refused batch leaves nothing behind. The
// batch gets its number and its ticket, and goes to the end of the backlog. If the backlog was
// empty, Submit issues a part of the batch itself, which saves a switch to another goroutine. A
// goroutine of the stream issues the rest.
//
// The head of the backlog is issued after its dependencies have resolved, part by part (Work.Issue)
// as the hardware has space. It delays all batches after it: the hardware order is the backlog
// order. A batch that is issued whole is in flight.
//
// The oldest batch in flight resolves when all its parts have completed (Batch.Land). So tickets
// resolve in order, in whatever order the hardware completes, and no hardware accesses a batch's
// memory afterwards. A goroutine that observes a completion calls Stream.ResolveCompleted. The
// owner of the stream decides how to observe completions.
//
// # Failures
//
// Issuing stops if a batch is canceled, if a dependency fails, or if the stream closes before the
// batch has started. The batch resolves in order, after its issued parts have completed. It fails
// alone.
//
// A hardware failure (Batch.Fail) breaks the stream. All batches after it fail with
// errdefs.ErrBroken and that failure as the cause, and no batch is accepted or issued any more. Of
// several failures, the first in stream order is the cause. A failure of no batch (Stream.Break)
// counts as one of the oldest unresolved batch. Close reports a failure that no ticket reports.
//
// A batch is lost if its completion cannot be observed (Batch.Lose). It and all batches after it
// are quarantined: they stay unresolved and keep their memory until Options.Stop reports to Close
// that the hardware has stopped.
//
// # Concurrency
//
// One goroutine at a time issues, and one settles; each may be any goroutine. This package holds no
// lock when it calls Work.
package ordered
