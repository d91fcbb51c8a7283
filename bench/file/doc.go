// Package file measures reads and writes of files: the raw device (O_DIRECT, by io_uring of several
// depths and by several threads of pread and pwrite), and the paths of streams of files, in
// interleaved rounds of one run. The result of a path is relative to the best raw access at the
// same place.
//
// A place is a block size, reads or writes, in sequence or scattered, and whether the file is in
// the page cache. Blocks are moved in batches between a scratch file and host memory or device
// memory. Cold reads and all writes bypass the page cache, or use a file that was just dropped from
// it. A hypervisor or the disk itself may still cache the file.
//
// Every batch is compared outside the measured time: reads at their destination, writes after they
// were read again. Scratch files are in a directory of their own, which is removed at the end.
package file
