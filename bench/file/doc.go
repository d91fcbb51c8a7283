// Package file measures reads and writes of files in interleaved rounds of one run. Contenders are
// raw access with O_DIRECT, by io_uring with several depths and by several threads with pread and
// pwrite, and the paths of file streams. The result of a path is relative to the best raw access at
// the same place.
//
// A place is a combination of block size, read or write, sequential or scattered order, and whether
// the file is in the page cache. Blocks are copied in batches between a scratch file and host
// memory or device memory. Cold reads and all writes bypass the page cache, or use a file that was
// just dropped from it. A hypervisor or the disk itself may still cache the file.
//
// The bytes of every batch are compared: after a read at the destination, after a write by reading
// the file. This is not part of the measured time. Scratch files are in a separate directory, which
// is removed at the end.
package file
