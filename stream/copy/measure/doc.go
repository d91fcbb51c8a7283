// Package measure is what the benchmark and the calibration of copies measure with: memory that is freed once everything that may
// touch it is closed (Rig), batches of scattered blocks (Blocks), submitting them (Copy), turns, and medians.
//
// Nothing here is safe for concurrent use, and nothing runs on goroutines of its own.
package measure
