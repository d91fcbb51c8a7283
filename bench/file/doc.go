// Package file measures files: the raw device by O_DIRECT, by io_uring of several depths and by several threads of pread and
// pwrite, and beside it the paths of streams of files, in turns with each other in one run. What a path reaches is a share of the
// best of the raw ones at the same place.
//
// A place is a block size, reads or writes, in sequence or scattered, and whether the operating system has the file in memory. Blocks
// are moved a batch at a time, between a scratch file and memory of the host, or of a device. Cold reads and all writes go past
// the page cache, or are of a file that the operating system was told to drop right before; what lies below the operating system
// (a hypervisor, the disk itself) may still have it in memory.
//
// Every batch's bytes are compared, outside of what is timed: reads where they arrived, writes after they were read again. Scratch
// files lie in a directory of their own, which is removed at the end.
package file
