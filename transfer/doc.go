// Package transfer reads and writes registered memory of other processes on the same or another
// host.
//
// An Engine has Segments. A Segment is a named address space in which Regions are registered, each
// at its own offset. Another process opens the segment by name as a Remote and submits batches of
// tasks. A task copies between an extent or pages of local memory and offsets of the segment. A
// Batch reports the result of each task and may deliver a notification after its data.
//
// A store of package metadata has the address of the engine of a segment; the engine describes the
// segment's contents. Every start of an engine has a new random identity. A segment belongs to that
// identity, so data never reaches an engine that was restarted. Offsets are not reused.
//
// A part of a batch takes the first path that works: imported memory of the same host (nvlink,
// shm), NICs of both engines (rdma), or TCP. If the path of a part fails, the part takes another
// one. Before that, the target fences the old connection: it ends it, so that no earlier bytes
// arrive late. An engine sends nothing to a target while an ended connection is not fenced.
//
// All types are safe for concurrent use. When a batch is resolved, its local memory is no longer
// accessed. The destination of a failed task is undefined.
package transfer
