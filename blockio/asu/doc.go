// Package asu encodes and decodes requests and completions of a block protocol that existing
// storage servers use. It has no transport. kvlane's own protocol is in package blockio.
//
// A request is a submission-queue entry of 16 little-endian dwords (64 bytes). The entries of a
// batch follow it. Unused bits are zero.
//
//	dword 0   operation, bits 0-7; response flag, 13; 3 at 14-15, except keep-alive; command id
//	          at 16-31
//	1         namespace
//	2         stores: dspec, bits 8-12; dtype, 13-15
//	3-5       response address, low and high; its memory key; zero without the response flag
//	6-7       single: address of the buffer
//	8         single: length, bits 0-23; memory key's bits 0-7 at 24-31; batch: bytes of the entries
//	9         single: memory key's bits 8-31 at 0-23; 40h at 24-31; batch: 01h at 24-31
//	10        single: offset; batch: count, bits 0-15; exist: bit 16 asks for a bit for each key
//	11        limited retry, bit 31; single: length of the value, bits 0-23
//	12-15     single: key
//
// An entry of a batch of stores or retrieves has 36 bytes: offset, u32; key, 16 bytes; address,
// u64; length, bits 0-23, and the memory key's bits 0-7; its bits 8-31, and 40h at 24-31. Entries
// of delete and exist are keys of 16 bytes.
//
// A completion has 16 bytes, followed by the results. Dword 3 has the command id in bits 0-15 and
// the status in 17-31. Dword 0 of exist has the number of existing keys in bits 0-15. Results have
// 4 bits for each entry of a store or retrieve, and one for each key of delete (1: failed) or exist
// (1: exists). The caller decodes a completion after an acquire load of dword 3 that has the
// command id. The unused bits of a completion are not checked.
//
// The types are not safe for concurrent use.
package asu
