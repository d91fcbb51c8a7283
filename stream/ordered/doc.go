// Package ordered is the life of an ordered stream, whatever hardware copies its batches. A stream of this sort has a Stream of
// this package, and says by Work how a batch reaches its hardware and when it has landed.
//
// # Life of a batch
//
// Stream.Submit admits it: at most Options.Depth batches are unresolved, a full stream blocks the caller until his context
// ends, and what is refused leaves nothing behind. The batch gets its number and its ticket, and goes to the end of the
// backlog. If nothing is before it, Submit issues a part of it itself, as no other goroutine should stand between a caller and
// idle hardware; a goroutine of the stream does the rest.
//
// The head of the backlog is issued once its dependencies have resolved, part by part (Work.Issue) as the hardware has room,
// and holds up all behind it: the order of the backlog is that of the hardware. Issued whole, it is in flight.
//
// The head of those in flight resolves once it has landed (Work.Landed). So tickets resolve in order, in whatever order the
// hardware completes, and each when nothing touches its memory any more. Who has seen something land calls Stream.Settle: how
// to see it is the stream's own matter.
//
// # Ends
//
// A batch that is cancelled, whose dependency failed, or that has not started when the stream closes, is issued no further and
// resolves in its turn, when what was issued of it has landed. It fails alone.
//
// A batch that the hardware fails (Batch.Fail) breaks the stream: everything behind it fails too, with errdefs.ErrBroken and
// that failure as the cause, and nothing more is admitted or issued. Of several failures the cause is the one that comes first
// in the stream's order. A failure of no batch is one of the oldest that is unresolved (Stream.Break). One that no ticket tells,
// Close does.
//
// A batch of which nothing tells when it has landed is lost (Batch.Lose). It and all behind it are in quarantine: they stay
// unresolved, and their memory held, until Close has proved by Options.Stop that the hardware has stopped.
//
// # Concurrency
//
// One goroutine at a time issues, and one settles; each may be any. Nobody calls Work with a lock of this package held.
package ordered
