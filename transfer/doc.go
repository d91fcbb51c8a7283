// Package transfer lets any process read and write registered memory of any other, on the same host or on another.
//
// An Engine has Segments: names under which it registers Regions, each at an offset of its own. Another process opens a segment by its
// name, gets a Remote, and submits batches of tasks, each of which reads or writes an extent of its own memory, or pages of it, from or to
// an offset in the segment. A Batch says how each task ended, and may deliver a notification after its data.
//
// Where a segment is, a store of metadata says (package metadata); what it has, its engine says itself. A segment belongs to one
// incarnation of its engine, with a random identity: what is sent to it never reaches another. Offsets are not used twice.
//
// Bytes go by the first path that can: memory that the segment's process exports, imported (shm, nvlink), NICs of both engines (rdma), or TCP. A part of a batch whose
// path dies goes by another, after everything that the first may still deliver was fenced off at the target. Nothing goes to a target that
// a fence is owed to.
//
// All types are safe for concurrent use. A batch is resolved when nothing touches its local memory any more; at the target a task that
// failed has left its bytes undefined.
package transfer
