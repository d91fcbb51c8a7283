// Package transfer lets a process read and write registered memory of other processes, on the same
// host or on another one.
//
// An Engine has Segments. A Segment is a name under which Regions are registered, each at its own
// offset. Another process opens the segment by name and gets a Remote. It submits batches of tasks.
// A task reads or writes an extent of local memory, or pages of it, from or to an offset of the
// segment. A Batch reports the result of each task and may deliver a notification after its data.
//
// A store of package metadata has the address of a segment; its engine describes its contents. A
// segment belongs to one incarnation of its engine, which has a random identity: data for it never
// reaches another incarnation. Offsets are not reused.
//
// A part of a batch takes the first path that works: imported memory of the same host (nvlink,
// shm), NICs of both engines (rdma), or TCP. If the path of a part fails, the part takes another
// one. Before that, the target fences the old connection, so that no earlier byte arrives late. An
// engine sends nothing to a target with an unfenced connection.
//
// All types are safe for concurrent use. A batch is resolved when nothing touches its local memory
// any more. The target's memory is undefined where a task failed.
package transfer
