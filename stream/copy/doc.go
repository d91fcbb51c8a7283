// Package copy implements the ordered stream between pinned host memory and the memory of one
// device, within either, and between devices. It copies all memory with a device address. Importers
// call it streamcopy.
//
// Package describe surveys a batch. Package plan, or another Planner, chooses its path, unless
// Options.Path forces one. Package move has one mover for each path. This package implements the
// stream, which issues the movers' steps and completes them.
//
// # Life of a batch
//
// Submit validates and surveys a batch and calls the planner. Package ordered implements the rest
// of the life cycle. A step is the part of a batch that fits into the descriptor ring, staging
// memory and the device's queue. Every step ends with an event. The completer goroutine, or a
// goroutine that waits for a ticket, processes events in order, releases memory and resolves
// tickets. The planner then observes the duration.
//
// Batches take effect in the order of submission on all paths. Most paths share one queue, or order
// their queues after it when the path changes. NICs cannot be ordered with queues: the host delays
// a batch by another path until all batches by NIC have completed, and the reverse.
//
// A path acquires memory and queues when it is first chosen, or in Open (Options.Prepare). If the
// device refuses them, the batch takes another path and its Completion has the cause. If memory was
// short, the path is retried after a second, then after twice as long each time, up to a minute.
// After other causes it is not retried.
//
// # Failures
//
// A ticket resolves only when no hardware accesses its memory. A batch that was canceled, or whose
// dependency failed, fails without breaking the stream. A failure of the device or a NIC breaks it:
// the batch fails with the native cause, later batches with errdefs.ErrBroken and that cause. After
// a Carrier has failed, streams with other paths stop using it. If no event can be recorded, the
// stream cannot know when the device stops. The tickets then stay unresolved (Stream.Quarantined
// counts them) until Close has seen all queues idle.
package copy
