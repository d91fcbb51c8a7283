// Package blockio is the protocol of block servers: its frames, independent of the transport.
//
// A client sends requests, and the server answers each with one result, in any order. Both have a
// head of 40 bytes, which the entries follow. All numbers are little-endian; unused bits and bytes
// are zero. Over sockets a frame is the body of a frame of package wire, and the bytes of blocks
// are its data, in the order of the entries. Over RDMA the server reads and writes the memory that
// the entries name. A frame is checked before it is packed, as packed bytes, and when it arrives.
//
// Head of a request:
//
//	 0  version          u8   1
//	 1  operation        u8   an Op
//	 2  flags            u16  bit 0: phase; 1: entries have addresses; 2: response address
//	 4  count            u32  number of entries
//	 8  id               u64  not zero, unique among the requests of the connection
//	16  remaining time   u32  milliseconds, not zero
//	20  response key     u32  memory key of the response address
//	24  response address u64  zero without flag 2, otherwise not zero
//	32  lease time       u32  milliseconds; lease and renew only
//	36  run              u32  of the first entry; zero: unknown; exist, lease and retrieve only
//
// Entry of store and retrieve, 96 bytes:
//
//	 0  key        32 bytes
//	32  identity   u64  IdentityHash of a declared identity
//	40  offset     u64  in the image
//	48  length     u64  not zero
//	56  shards     u32  first shard that the bytes touch
//	60  shards     u32  end of these shards; both are zero for bytes of the header alone
//	64  checksum   u64  XXH3 of the bytes of a store; zero for a retrieve
//	72  address    u64  of the user's memory; zero without flag 1, otherwise not zero
//	80  memory key u32
//	84  zero       12 bytes
//
// Entry of exist, lease and delete, 40 bytes: key, 32 bytes; identity, u64. Entry of renew and
// release: id of a lease, u64. Cancel has one entry, the id of a request, u64. Flush, stat and
// keep-alive have none. Attach has an endpoint. Hello describes its own content.
//
// Endpoint of attach and of its result, 32 bytes: number of the queue pair, u32; of its first
// packet, u32; GID, 16 bytes; LID, u16; MTU, u8, an rdma.MTU; concurrent reads, u8; zero, u32.
//
// Head of a result:
//
//	 0  version    u8   1
//	 1  operation  u8   that of the request + 128
//	 2  flags      u16  bit 0: the phase of the request
//	 4  count      u32  number of entries; of a lease: of the leased keys
//	 8  id         u64  of the request
//	16  status     u16  a Status
//	18  zero       u16
//	20  credits    u32  number of requests that the client may send in addition
//	24  bytes      u64  moved, the sum over the entries
//	32  lease time u32  milliseconds until the leases end; lease and renew only
//	36  replicas   u32  servers that are to have the run of the request, 2 to 16; zero: it is not hot
//
// Entry of a result of store and retrieve, 24 bytes: status, u16; zero, 6 bytes; bytes moved, u64;
// checksum of these, u64. A result of exist has one bit for each key that is present, then one for
// each that is durable, each in as few bytes as possible, bit i in byte i/8. A result of lease has
// the id of the lease, u64, if keys are leased: the longest prefix. A result of renew, release and
// delete has a status for each entry, u16. A result of stat has a Stat. If a request fails as a
// whole, its result has no entries.
//
// The types are values without locks. A Packer may be used by one goroutine at a time.
package blockio
