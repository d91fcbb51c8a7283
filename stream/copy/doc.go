// Package copy is the ordered stream between pinned host memory and one device's memory, or within either: everything
// that has a device address. Importers call it streamcopy.
//
// # Paths
//
// A batch takes one of three paths, by the size rule of choose.go or as Options.Path forces:
//
//   - copy-engine: one Queue.Copy for each run of extents that are neighbours on both sides;
//   - copy-engine-batch: the same runs, many in one call of device.BatchCopier;
//   - kernel: device.Launcher reads descriptors from pinned memory and copies over the bus itself. Lists of extents
//     become 24 bytes a piece; a mem.Paged stays a table of planes and 8 bytes a page, and the addresses behind it are
//     computed on the device.
//
// # Life of a batch
//
// Submit validates, takes a place in the stream (at most Options.QueueDepth batches are unresolved) and appends the
// batch to the backlog. If nobody is issuing and the backlog was empty, Submit issues the first step itself: no other
// goroutine stands between a caller and an idle device. The issuer goroutine does the rest: batches whose dependencies
// are unmet, which hold up all later ones as the order demands, and the later steps of batches that do not fit the
// descriptor ring or the device's queue at once. Every step ends with a recorded event. The completer goroutine waits for
// those events in order, gives ring space back and resolves tickets.
//
// # Failures
//
// A ticket resolves only when nothing can touch its memory. A batch that was cancelled, or whose dependency failed, ends
// without breaking the stream. A failure of the device does break it: the batch fails with the native cause, everything
// accepted later fails with errdefs.ErrBroken and that cause. When not even an event can be recorded to tell when the
// device has stopped, the tickets stay unresolved (Stream.Quarantined counts them) until Close has seen the queue idle.
package copy
