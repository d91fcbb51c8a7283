// Package doctor says what a machine has for moving KV cache: GPUs and how they are attached, RDMA devices, cuFile,
// io_uring, huge pages, locked memory, file systems, and which of kvlane's paths that makes available.
//
// Every answer is one of three: yes, no with the reason, or unknown with the reason why it could not be told. A no, where
// something can be done about it, comes with what to do.
//
// What is asked of the machine goes through Machine, whose fields can be replaced: Local is this machine, tests use
// recorded ones. Examine keeps nothing and may be called concurrently.
package doctor
