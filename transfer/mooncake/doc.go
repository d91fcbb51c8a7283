// Package mooncake speaks the transfer protocol of Mooncake's engine over TCP, both sides of it, so that kvlane's processes and
// Mooncake's read and write each other's registered memory.
//
// A segment is a process's registered buffers under one name. A Server offers one: it answers the handshake (metadata, notify, probe) on
// one port and moves bytes on another. A Remote is another process's segment: batches of tasks go to it over several connections, each of
// which has many requests under way. A Directory says where segments are: each at the address that is its name (P2PHANDSHAKE), or in an
// HTTP metadata server, as package metadata has one. Whose bytes they are, the Memory says that a side is given: Regions, of the
// host's memory without a copy in between, and of a device's in pinned chunks.
//
// The protocol names no one: whoever reaches the ports reads and writes what is registered. Give it networks that are trusted only.
// What it does not have here: RDMA, whose handshake is refused, and directories in etcd or redis.
//
// Addresses that a peer names are checked against the registered buffers with arithmetic that does not overflow; frames, connections and
// times are bounded; each connection has a goroutine, so that a silent one delays nobody. A write is confirmed once its bytes are in
// memory: version 2 of the protocol has a status for that, and for version 1, which has none, a Remote reads a byte of what it wrote,
// on the same connection, whose requests are carried out in order.
//
// All types are safe for concurrent use.
package mooncake
