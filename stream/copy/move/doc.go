// Package move implements the paths on which a copy stream copies batches, one Mover each:
//
//   - Engine (copy-engine) copies each run of extents that are adjacent on both sides. If the queue
//     is a device.BatchCopier, one call makes many copies; between two devices they are made one by
//     one;
//   - Kernel (kernel) launches a kernel that reads descriptors from pinned memory and copies over
//     the bus or between two devices. A list of extents takes 24 bytes per piece. A mem.Paged stays
//     a table of planes and takes 8 bytes per page; the device computes the addresses;
//   - Staged (staged) crosses the bus by copy engine, with one copy per run of the host side, and
//     gathers or scatters within device memory by kernel. It works chunk by chunk, with a separate
//     queue;
//   - NIC (nic, nic-soft) submits whole batches to another ordered stream, over RDMA NICs.
//
// A mover receives its resources in an Env and its work in a Batch. It does not depend on the
// stream. It issues a batch step by step. A Step records the issued work and the memory that the
// work uses. One goroutine at a time issues steps, and one completes them.
package move
