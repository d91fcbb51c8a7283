// Package owner lets a command reach the process that has a directory of blocks open, its owner, so
// that the command sees the owner's leases and memory. The owner serves a Unix socket in the
// directory, and the command asks it.
//
// The socket has mode 0600. The owner answers processes of its own user and of root. A command
// accepts an owner of its own user, of root, or of the user that owns the folder of the socket.
// Paths of sockets may have 107 bytes only, and names must not lead out of the directory, so both
// sides reach the socket through an open descriptor (/proc/self/fd): the owner through that of the
// folder, and the command through that of the socket's file, which is no link.
//
// A request is a header of 12 bytes and keys of 32 bytes: "kvo", the version 1, the operation,
// three zero bytes, and the number of keys, 1 to MaxKeys, as a little-endian uint32. The reply is
// its length, a little-endian uint32 of at most 4 MiB, and a JSON object. A connection may have
// several requests, one after another. An owner serves at most 8 connections at a time, and others
// wait. It waits at most 10 s for a request, and works at most a minute on one.
package owner
