// Package capi is what the C library does, in Go: engines behind handles, JSON for configurations and figures, timeouts for
// contexts, numbers for errors. The library (cmd/libkvlane) only converts between C's types and these.
//
// A Library holds what its callers have handles of. Handles are numbers that are never used twice, so one that was freed is found out.
// All methods are safe for concurrent use; slices that are given are not kept.
package capi
