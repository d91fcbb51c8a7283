// Package bench measures how fast a device's copy paths move scattered blocks, as the blocks of a paged KV cache lie,
// against what one large copy reaches in the same run (C), what one driver call a block reaches, and what the driver's own
// batched copy reaches.
//
// # Points
//
// A point is a contender (a path, a policy of the planner, or a baseline), a cell (block size and count), a direction (to
// the device, to the host, or both at once) and a placement on the host side: contiguous, scattered, or a store's slots, each of
// which holds blocks in a row. The device side is always scattered: blocks of a pool in random order, others in another order in every repetition. A repetition is count blocks, timed from Submit until
// they are done, on an idle stream; more than Options.BatchBlocks of them are several batches, submitted without waiting in
// between. How many repetitions a point gets is decided by the time that is left of Options.Budget.
//
// The contenders of a cell, direction and placement are a group. They take turns, in rounds, with a large copy between the
// rounds: whatever else slows the host or the link down for a while hits all of them, and C. A point's share is of the large
// copies between its own turns, and two contenders are compared turn by turn. Where even the fastest would take too long, the
// whole group moves fewer blocks than the cell says; a contender that is far slower than the fastest moves fewer still. The
// report says how many.
//
// Bytes are checked after the first and after the last repetition of a point, outside the time measured, against a
// pattern that differs at every position; destinations are poisoned before the first. A run that moved wrong bytes fails
// and reports no figures. The garbage collector is off while points are measured, and runs between them.
//
// # NICs
//
// Copies by RDMA NICs that are connected to themselves are contenders as others are: the stream over them (nic), and requests
// that are posted straight on a queue pair (nic-channel, by Options.OpenChannel). What opens them is given, and Options.Memory
// registers the memory beforehand. NICs in software (nic-soft, nic-soft-channel) take their turns with the rest, since what
// they are compared with is the copies by CUDA in the same rounds, but their points are in Report.Soft and shown apart
// everywhere: their figures are of the software. Point.BusyCPUs says how many processors a contender kept busy.
//
// # Forms, peers, and beside a product
//
// With Options.Forms, lists, page lists, and page lists with checksums on the way are compared in the same manner. With
// Options.Peer, so are the paths between two devices.
//
// With Options.Product, contenders also copy beside matrix products that keep the device's multiprocessors busy, in pairs
// of windows with and without the copies, interleaved, the order alternating from pair to pair. The loss is the share of the
// product's rate that the copies cost: the mean over the pairs of one minus the ratio of their times, with the 95%
// confidence interval of Student's t for that mean.
//
// Run measures one device, alone, from one goroutine at a time. On the simulated device the figures describe the
// simulation, and every form of the report says so.
package bench
