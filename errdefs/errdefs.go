// Package errdefs defines the sentinel errors of kvlane. Every error of its packages wraps one of
// them, and states the operation, the object and the native cause. Callers test for the sentinel.
package errdefs

import "errors"

var (
	// ErrInvalid: the caller's arguments or input are wrong; the same call will fail again.
	ErrInvalid = errors.New("invalid argument")
	// ErrNotFound: the object does not exist. For a store this is a miss, not a failure.
	ErrNotFound = errors.New("not found")
	// ErrExists: the object already exists, or another call is creating it.
	ErrExists = errors.New("already exists")
	// ErrNotSupported: this machine, driver or build lacks a requirement of the call. The text
	// names the requirement.
	ErrNotSupported = errors.New("not supported")
	// ErrBusy: a bounded resource is exhausted; the call may succeed later.
	ErrBusy = errors.New("busy")
	// ErrNoMemory: an allocation was refused.
	ErrNoMemory = errors.New("out of memory")
	// ErrNoSpace: a storage tier is full.
	ErrNoSpace = errors.New("no space left")
	// ErrReadOnly: a storage tier cannot be written.
	ErrReadOnly = errors.New("read-only")
	// ErrCorrupt: stored bytes failed their check. The bytes must not be used.
	ErrCorrupt = errors.New("corrupt")
	// ErrMismatch: the object belongs to another identity or format version.
	ErrMismatch = errors.New("identity or format mismatch")
	// ErrCanceled: the work was cancelled before it finished; its target is undefined.
	ErrCanceled = errors.New("canceled")
	// ErrExpired: a lease ended before the call.
	ErrExpired = errors.New("lease expired")
	// ErrLost: the process that owns this memory has revoked it or ended. The destinations of
	// recent copies are undefined.
	ErrLost = errors.New("lost")
	// ErrClosed: the object was closed.
	ErrClosed = errors.New("closed")
	// ErrBroken: an earlier failure stopped this stream or queue. The error also wraps that cause.
	ErrBroken = errors.New("broken by an earlier failure")
)
