// Package doctor examines a machine for moving KV cache: GPUs and their links, RDMA devices,
// cuFile, io_uring, huge pages, locked memory and file systems. It reports which of kvlane's paths
// are available.
//
// An answer is yes, no, or unknown if a probe was inconclusive. A no and an unknown have a reason,
// and a remedy if there is one.
//
// All access to the machine is by the fields of Machine, which can be replaced. Local returns this
// machine; tests use recorded ones. Examine keeps no state and may be called concurrently.
package doctor
