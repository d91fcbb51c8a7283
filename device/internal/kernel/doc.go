// Package kernel is kvlane's kernels in Go, for devices whose work a CPU does: the copies of lists, pages and parts, with and
// without sums, and the patterns of tests. What an address stands for is the device's to say (Memory).
//
// A Machine runs one kernel at a time. Kernels never change, and are safe for concurrent use.
package kernel
