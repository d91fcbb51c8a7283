// Package move has the ways by which a copy stream's batches travel, a Mover each:
//
//   - Engine (copy-engine): a copy for each run of extents that are neighbours on both sides, many in one call of a queue that is
//     a device.BatchCopier, but one by one between two devices;
//   - Kernel (kernel): a kernel reads descriptors from pinned memory and copies itself, over the bus or between two devices. Lists
//     of extents become 24 bytes a piece; a mem.Paged stays a table of planes and 8 bytes a page, and the addresses behind it are
//     computed on the device;
//   - Staged (staged): a copy engine crosses the bus, one copy for each run of the host's side, and a kernel gathers or scatters
//     within device memory, chunk by chunk, on a queue of its own;
//   - NIC (nic, nic-soft): another ordered stream, over RDMA NICs, is given whole batches.
//
// A mover gets what it needs when it is made (Env) and when it issues (Batch), and knows nothing of the stream. It issues a batch
// step by step; what was issued, and what holds memory until it is done, the Step says. One goroutine at a time issues, and one
// takes what is done.
package move
