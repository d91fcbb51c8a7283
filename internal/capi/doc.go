// Package capi implements the C library in Go. It replaces engines by handles, configurations and
// statistics by JSON, contexts by timeouts, and errors by numbers. cmd/libkvlane converts the C
// types.
//
// A Library maps handles to objects. Handle numbers are never reused, so uses of freed handles are
// detected. All methods are safe for concurrent use. No method keeps a slice of the caller.
package capi
