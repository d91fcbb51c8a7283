// Package block defines stored blocks: their name (Key), the model and shape that they belong to
// (Identity), the layout of their bytes (Layout), and the image format (Format). An image contains
// everything that a reader needs to check that the block is complete and is the requested one.
//
// A block is the KV cache of a fixed number of tokens. It is stored as one image: a header, then
// the shards, usually the K and V of one layer each. Header and shards are aligned to 4 KiB for
// direct I/O and cuFile. The header contains the identity, the key, the offset, length and checksum
// of each shard, and a checksum of itself.
//
// The checksum of a shard is a tree of two levels with leaves of 4 KiB (SumTree), so that it can be
// computed by a copy in pieces, in any order. Images with the plain checksum of earlier builds
// (SumXXH3) are read too. The header contains the algorithm.
//
// The layers of a hybrid model are divided into page groups, whose blocks differ in layout and
// identity. Formats holds the format of each group, and a key identifies its group. A model without
// groups has one.
//
// Values are immutable or plain, and all functions are safe for concurrent use. Two goroutines must
// not use one image at the same time unless both only read it. The package does no I/O. Sealing and
// verifying an image do not allocate.
package block
