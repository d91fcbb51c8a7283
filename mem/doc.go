// Package mem names the memory that kvlane copies between: a Region is a registered span, or a file, an Extent a part of one, a
// Batch the copies that complete together, and a Paged the compact form of a batch for paged KV caches.
//
// Nothing here moves a byte or talks to hardware, and nothing here imports another package of kvlane but errdefs.
// Regions are immutable and safe for concurrent use. Extents, Paged and Batch are plain values; whoever submits a Batch
// must leave it and its slices unchanged until its ticket resolves.
package mem
