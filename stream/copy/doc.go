// Package copy is the ordered stream between pinned host memory and one device's memory, within either, and between
// devices: everything that has a device address. Importers call it streamcopy.
//
// A batch is described, chosen for, moved and completed. Package describe says what is in it. Package plan, or a Planner of
// one's own, chooses a path for it, unless Options.Path forces one. Package move has the paths, a mover each. This package has
// the stream, which issues what the movers make of a batch, and completes it.
//
// # Life of a batch
//
// Submit validates, describes and has the planner choose. From then on the life is that of package ordered: a part that is
// issued is a step, as much as fits the descriptor ring, staging memory and the device's queue, and every step ends with an
// event. The completer goroutine, or whoever waits for a ticket, takes those events in order, gives memory back and has what
// landed resolve; the planner then hears how long it took.
//
// Batches take effect in the order of submission, whatever paths they travel by: all paths share one queue, or join theirs
// with it when another path is next. A NIC joins no queue: the host holds a batch by another path until all batches by NIC
// have completed, and the other way round.
//
// A path gets its memory and queues when it is first chosen, or when the stream is opened (Options.Prepare). If the device
// refuses them, the batch goes another way and its Completion says why. The path is given up: for want of memory until it is
// tried again, after a second and then after twice as long each time, up to a minute; for other reasons for good.
//
// # Failures
//
// A ticket resolves only when nothing can touch its memory. A batch that was cancelled, or whose dependency failed, ends
// without breaking the stream. A failure of the device does break it: the batch fails with the native cause, everything
// accepted later fails with errdefs.ErrBroken and that cause. So does one of a NIC, and no stream that has another path
// takes that Carrier again. When not even an event can be recorded to tell when the device has stopped, the tickets stay
// unresolved (Stream.Quarantined counts them) until Close has seen all queues idle.
package copy
