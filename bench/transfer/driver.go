package transfer

import (
	"context"

	"github.com/kvlane/kvlane/mem"
)

// Op is the operation of batches.
type Op string

// Operations, from the point of view of the initiator.
const (
	Read  Op = "read"
	Write Op = "write"
)

// Block is one block of a batch: Length bytes at offset Local of the driver's memory and at offset
// Remote of the target's memory.
type Block struct{ Local, Remote, Length int64 }

// Driver executes batches between its own memory and a target's memory. Its methods are safe for
// concurrent use.
type Driver interface {
	// Protocol and Target describe the driver for reports.
	Protocol() string
	Target() string
	// Local returns the driver's memory. Remote returns the length of the target's memory in bytes.
	Local() Memory
	Remote() int64
	// Submit starts a batch. The batch fails when ctx ends. The caller may reuse the list of blocks
	// after the call.
	Submit(ctx context.Context, op Op, blocks []Block) (Pending, error)
}

// Memory is the memory of a driver. Concurrent calls must use different parts of it.
type Memory interface {
	// Len returns the length in bytes.
	Len() int64
	// Store writes b to offset at. Fetch reads len(b) bytes from offset at into b.
	Store(ctx context.Context, at int64, b []byte) error
	Fetch(ctx context.Context, at int64, b []byte) error
}

// Host is memory with a CPU address.
type Host struct{ *mem.Region }

// Store implements Memory.
func (h Host) Store(_ context.Context, at int64, b []byte) error {
	copy(h.Bytes()[at:], b)
	return nil
}

// Fetch implements Memory.
func (h Host) Fetch(_ context.Context, at int64, b []byte) error {
	copy(b, h.Bytes()[at:])
	return nil
}

// Pending is a batch in progress.
type Pending interface {
	// Wait waits for the end of the batch and returns its error.
	Wait(ctx context.Context) error
}
