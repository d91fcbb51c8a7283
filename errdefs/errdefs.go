// Package errdefs holds the sentinel errors that callers decide by. Every package of kvlane wraps one of them, with the
// operation, the object and the native cause, so that errors.Is answers "what now?" and the text answers "why?".
package errdefs

import "errors"

var (
	// ErrInvalid: the caller's arguments or input are wrong; the same call will fail again.
	ErrInvalid = errors.New("invalid argument")
	// ErrNotFound: the object is not there. For a store this is a miss, not a failure.
	ErrNotFound = errors.New("not found")
	// ErrExists: the object is already there, or somebody is already making it.
	ErrExists = errors.New("already exists")
	// ErrNotSupported: this machine, driver or build lacks what the call needs; the text says what.
	ErrNotSupported = errors.New("not supported")
	// ErrBusy: a bounded resource is used up for now; the call may succeed later.
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
	// ErrCanceled: the work was cancelled before it finished; what it touched is undefined.
	ErrCanceled = errors.New("canceled")
	// ErrExpired: a lease ended before the call.
	ErrExpired = errors.New("lease expired")
	// ErrLost: another process, which this memory belongs to, has taken it back or is gone. What was copied last is undefined.
	ErrLost = errors.New("lost")
	// ErrClosed: the object was closed.
	ErrClosed = errors.New("closed")
	// ErrBroken: an earlier failure stopped this stream or queue; the cause is wrapped beside it.
	ErrBroken = errors.New("broken by an earlier failure")
)
