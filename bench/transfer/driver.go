package transfer

import (
	"context"

	"github.com/kvlane/kvlane/mem"
)

// Op is what batches do.
type Op string

// The operations, as the initiator sees them.
const (
	Read  Op = "read"
	Write Op = "write"
)

// Block is Length bytes of a batch, from byte Local of the driver's own memory and byte Remote of the target's.
type Block struct{ Local, Remote, Length int64 }

// Driver carries batches between memory of its own and a target's. Its methods are safe for concurrent use.
type Driver interface {
	// Protocol and Target say what is measured, for people.
	Protocol() string
	Target() string
	// Local is the driver's own memory; Remote is the length of the target's, in bytes.
	Local() Memory
	Remote() int64
	// Submit begins a batch, which ctx bounds. The list of blocks is the caller's again when it returns.
	Submit(ctx context.Context, op Op, blocks []Block) (Pending, error)
}

// Memory is what batches are copied from and to. Its methods are safe for concurrent use of what does not overlap.
type Memory interface {
	// Len is its length in bytes.
	Len() int64
	// Store writes b to it, at byte at, and Fetch reads it from there.
	Store(ctx context.Context, at int64, b []byte) error
	Fetch(ctx context.Context, at int64, b []byte) error
}

// Host is memory that the CPU reaches.
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

// Pending is a batch under way.
type Pending interface {
	// Wait waits for the batch to be done, and returns what it failed with.
	Wait(ctx context.Context) error
}
