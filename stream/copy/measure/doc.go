// Package measure provides tools for the benchmark and the calibration of copies: memory that is
// freed after everything that may access it is closed (Rig), batches of scattered blocks (Blocks),
// their submission (Copy), orders of streams, and medians.
//
// Nothing in it is safe for concurrent use, and the package starts no goroutines.
package measure
