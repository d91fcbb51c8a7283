// Package doctor examines the parts of a machine that kvlane uses: GPUs and their links, RDMA
// devices, cuFile, io_uring, huge pages, locked memory and file systems. It reports which of
// kvlane's paths are available.
//
// An answer is yes, no, or unknown if a probe was inconclusive. A no or unknown has a reason, and a
// remedy if one is known.
//
// The machine is accessed through the fields of Machine only. Local returns this machine; tests use
// recorded machines. Examine keeps no state and is safe for concurrent use.
package doctor
