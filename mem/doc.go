// Package mem describes the memory that kvlane copies. A Region is a registered span of memory or
// of a file, an Extent a part of one, a Batch a set of copies that complete together, and a Paged
// the compact form of a batch for paged KV caches. A SlotPool lends slots of one region, and Buffers
// lends zeroed buffers whose memory hooks allocate, pin and register with a NIC.
//
// The package copies nothing and calls no hardware. Of kvlane it imports only errdefs. Regions are
// immutable and safe for concurrent use. Extent, Paged and Batch are plain values. The submitter of
// a Batch must not change it or its slices until its ticket resolves.
package mem
