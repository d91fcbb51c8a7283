// Package bench measures the rate at which the copy paths of a device move scattered blocks, like
// those of a paged KV cache. References of the same run are one large copy (C), one driver call per
// block, and the batched copy of the driver.
//
// # Points
//
// A point is a contender (a path, a policy of the planner, or a baseline), a cell (block size and
// count), a direction (to the device, to the host, or both at once) and a host arrangement:
// contiguous, scattered, or the slots of a store, with contiguous blocks in each slot. Blocks on
// the device are always scattered: each repetition draws another random order. A repetition moves
// count blocks on an idle stream, timed from Submit until they are done. More than
// Options.BatchBlocks blocks are several batches, submitted without waiting. The remaining part of
// Options.Budget decides the number of repetitions of a point.
//
// The contenders of a cell, direction and host arrangement are a group. They are measured in
// interleaved rounds, with a large copy between rounds. A disturbance of the host or the link then
// affects all of them, and C. The share of a point is relative to the large copies of its own
// rounds, and two contenders are compared round by round. If even the fastest contender would take
// too long, the whole group moves fewer blocks than the cell has. A contender that is far slower
// than the fastest moves even fewer. The report has the numbers.
//
// Bytes are checked after the first and the last repetition of a point, outside the measured time,
// against a pattern that differs at every position. Destinations are poisoned before the first
// repetition. A run that moved wrong bytes fails and has no report. The garbage collector runs only
// between points.
//
// # NICs
//
// RDMA NICs that are connected to themselves are contenders too: the stream over them (nic), and
// requests on a queue pair (nic-channel, by Options.OpenChannel). Options.Memory registers the
// memory before they are opened. NICs in software (nic-soft, nic-soft-channel) take part in the
// rounds, but their points are in Report.Soft and separate in all output. Their figures describe
// the software. Point.BusyCPUs is the number of processors that a contender used.
//
// # Peers
//
// Options.Peer also compares the paths between two devices.
//
// Run measures one device, from one goroutine at a time. Nothing else should use the device. On the
// simulated device the figures describe the simulation, and every output is labeled so.
package bench
