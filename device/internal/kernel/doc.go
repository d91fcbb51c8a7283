// Package kernel implements kvlane's kernels in Go, for devices whose work runs on a CPU: the
// copies of lists, pages and parts, with and without sums, and the test patterns. The device maps
// addresses to bytes (Memory).
//
// A Machine runs one kernel at a time. Kernels are constants and safe for concurrent use.
package kernel
