// Package copy is the ordered stream between pinned host memory and one device's memory, within either, and between
// devices: everything that has a device address. Importers call it streamcopy.
//
// # Paths
//
// A batch takes one path, by the word of Options.Planner or as Options.Path forces. Each is a mover in a file of its own:
//
//   - copy-engine: a copy for each run of extents that are neighbours on both sides, many in one call of a queue that is a
//     device.BatchCopier, but one by one between two devices;
//   - kernel: device.Launcher reads descriptors from pinned memory and copies itself, over the bus or between two devices.
//     Lists of extents become 24 bytes a piece; a mem.Paged stays a table of planes and 8 bytes a page, and the addresses
//     behind it are computed on the device;
//   - staged: a copy engine crosses the bus, one copy for each run of the host's side, and a kernel gathers or scatters
//     within device memory, chunk by chunk, on a queue of its own;
//   - resident: kernels that stay on the device take small batches from rings in pinned memory. One takes a batch alone up
//     to 64 KiB, up to four share a larger one. Up to twenty pieces travel in a worker's entry of the ring, so that it has
//     nothing else to read before it copies;
//   - nic and nic-soft: another ordered stream, over RDMA NICs, is given whole batches between host and device memory that it
//     reaches (Options.NIC). Which of the two names it has, the Carrier says.
//
// The kernel paths and staged fill mem.Paged.Sums from the bytes as they pass; staged as long as a leaf fits into a chunk.
// To the host they are of what was read from the pages, before it crosses the bus; to the device, of what had crossed it
// and was then written to the pages. So either way the crossing lies between the sums and the bytes in host memory, and who
// compares the two finds what it did. Where a batch asks for sums, the planner weighs the pass of a CPU that the other
// paths leave to be made (docs/adr/0008).
//
// A path gets its memory and queues when it is first chosen, or when the stream is opened (Options.Prepare), and Submit waits for that no longer than its context says. If the
// device refuses them, the batch goes another way and its Completion says why. The path is given up: for want of memory until
// it is tried again, after a second and then after twice as long each time, up to a minute; for other reasons for good. A
// stream that is closing or broken gets nothing more, and Close frees all that it had.
//
// # Beside other work
//
// A kernel waits for multiprocessors that something else holds: beside a large matrix product up to 1.4 ms, however little
// it has to do. So under the background policy the planner says how large a staged chunk should be (Choice.ChunkBytes): a
// gathering kernel then is worth its wait, and a copy engine, which waits for nothing, is kept busy. Queues are of the
// highest priority, staging memory holds four chunks.
//
// Resident kernels are guests. Each stays for a lease of a few milliseconds at most, leaves earlier when it has nothing to
// do, and is told to leave before the stream gives memory back: drivers free memory only when no kernel runs. A process
// that is killed leaves nothing behind but what its lease allows.
//
// # Life of a batch
//
// Submit validates, surveys and has the planner choose. From then on it is that of package ordered: a part that is issued is a
// step, as much as fits the descriptor ring, staging memory and the device's queue, and every step ends with an event. The
// completer goroutine, or whoever waits for a ticket, takes those events in order, gives memory back and has what landed
// resolve; the planner then hears how long it took. Who waits for a small batch polls, so that no other goroutine has to wake
// up between the last byte and him.
//
// All paths share one queue, or join theirs with it (owner.turn) when another path is next: batches take effect in the
// order of submission whatever paths they travel by. With resident kernels and NICs no queue can be joined: the host holds
// what comes by another path until all of theirs has landed, and the other way round. The planner hears which paths that
// makes wait (plan.Request.Alone).
//
// # Failures
//
// A ticket resolves only when nothing can touch its memory. A batch that was cancelled, or whose dependency failed, ends
// without breaking the stream. A failure of the device does break it: the batch fails with the native cause, everything
// accepted later fails with errdefs.ErrBroken and that cause. So does one of a NIC, and no stream that has another path
// takes that Carrier again. A NIC that takes no batch has touched nothing: that batch goes by copy engine, and the path
// is given up. When not even an event can be recorded to tell when the
// device has stopped, the tickets stay unresolved (Stream.Quarantined counts them) until Close has seen all queues idle.
package copy
