// Package bench measures the rate at which copy paths of a device copy scattered blocks, such as
// those of a paged KV cache. For comparison it also measures one large copy (C), one driver call
// per block, and the driver's batched copy.
//
// # Points
//
// A point is a contender (a path, a policy of the planner, or a baseline), a cell (block size and
// count), a direction (to the device, to the host, or both at once) and a host arrangement:
// contiguous, scattered, or the slots of a store, with contiguous blocks in each slot. Blocks on
// the device are always scattered, in a new random order for each repetition. A repetition moves
// count blocks on an idle stream, timed from Submit until they are done. More than
// Options.BatchBlocks blocks are submitted as several batches without waiting in between. The
// number of repetitions of a point depends on the remaining budget.
//
// The contenders of a cell, direction and host arrangement are a group. They are measured in
// interleaved rounds, with a large copy between rounds, so that a disturbance of the host or the
// link affects all of them and C. The share of a point is relative to the large copies of its own
// rounds. Two contenders are compared round by round. If even the fastest contender would take too
// long, the whole group copies fewer blocks than the cell has. A contender that is far slower than
// the fastest copies even fewer. The report contains the numbers.
//
// After the first and the last repetition of a point, the copied bytes are compared with a pattern
// that differs at every position. Destinations are overwritten before the first repetition. These
// steps are not part of the measured time. If bytes are wrong, the run fails without a report. The
// garbage collector runs only between points.
//
// # NICs
//
// RDMA NICs with loopback queue pairs are contenders too: streams over NICs (nic), and requests on
// a queue pair (nic-channel, opened by Options.OpenChannel). Options.Memory registers the memory
// before they are opened. Software NICs (nic-soft, nic-soft-channel) are measured in the same
// rounds, but their points are in Report.Soft, because they do not describe hardware.
// Point.BusyCPUs is the average number of processors that a contender used.
//
// # Peers
//
// Options.Peer also compares the paths between two devices.
//
// Run measures one device. It must not be called concurrently, and nothing else should use the
// device. Results of the simulated device describe the simulation and are labeled accordingly.
package bench
