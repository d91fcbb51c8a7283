// Package capi implements the C library in Go: handles for engines, JSON for configurations and
// figures, timeouts for contexts, numbers for errors. cmd/libkvlane converts the types of C.
//
// A Library holds the objects behind its handles. A handle is a number that is never used again, so
// a freed one is detected. All methods are safe for concurrent use and keep no slice of the caller.
package capi
