// Package block says what a stored block is: its name (Key), what it belongs to (Identity), how its bytes lie (Layout)
// and how they are written down so that any later reader can tell whether they are whole and its own (Format).
//
// A block is the KV cache of a fixed number of tokens. It is kept as one image: a header, then the shards (a layer's K
// and V each, usually), header and shards starting at multiples of 4 KiB so that direct I/O and cuFile read them alike.
// The header names the identity and the key, lists each shard's place and checksum, and ends with a checksum of itself.
//
// A shard's checksum is a tree of two levels, over leaves of 4 KiB (SumTree), so that whoever copies a shard piece by piece,
// in any order, can make it on the way. Images with the plain checksum of earlier builds (SumXXH3) are read as well; the
// header says which it has.
//
// The layers of a hybrid model are divided into page groups, whose blocks differ in layout and identity: Formats has the format of
// each, and a key says of which group it is. A model without groups is one.
//
// Values here are immutable or plain, and everything is safe for concurrent use; two goroutines must not work on one
// image at a time unless both only read. Nothing here does I/O, and sealing or verifying an image allocates nothing.
package block
