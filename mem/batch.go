package mem

import (
	"fmt"
	"iter"

	"github.com/kvlane/kvlane/errdefs"
)

// Dependency is an event that a Batch may wait for, usually a stream.Ticket.
type Dependency interface {
	// Done is closed when the dependency has resolved, with or without an error.
	Done() <-chan struct{}
	// Err returns the error of a failed dependency, or nil. It is valid after Done.
	Err() error
}

// Batch is a set of copies with one completion: Src[i] to Dst[i] for every i, and Paged unless nil.
// The copies may run in any order, so no destination may overlap another extent of the batch.
type Batch struct {
	Dst, Src []Extent
	Paged    *Paged
	// After lists the dependencies to wait for before the first copy. If one fails, the batch
	// fails.
	After []Dependency
	// Awaited is set if a computation waits for this batch. Interference with computations then
	// does not matter, and a stream copies as fast as it can.
	Awaited bool
}

// Validate returns the first error in the batch. It does not detect overlaps.
func (b *Batch) Validate() error {
	if len(b.Dst) != len(b.Src) {
		return fmt.Errorf("batch has %d destinations and %d sources: %w", len(b.Dst), len(b.Src), errdefs.ErrInvalid)
	}
	for i := range b.Dst {
		if err := b.Dst[i].Validate(); err != nil {
			return fmt.Errorf("destination %d: %w", i, err)
		}
		if err := b.Src[i].Validate(); err != nil {
			return fmt.Errorf("source %d: %w", i, err)
		}
		if b.Dst[i].Len != b.Src[i].Len {
			return fmt.Errorf("copy %d has %d bytes of source for %d of destination: %w", i, b.Src[i].Len, b.Dst[i].Len, errdefs.ErrInvalid)
		}
	}
	if b.Paged != nil {
		return b.Paged.Validate()
	}
	return nil
}

// Bytes returns the number of bytes that the batch copies.
func (b *Batch) Bytes() int64 {
	var n int64
	for i := range b.Src {
		n += b.Src[i].Len
	}
	if b.Paged != nil {
		n += b.Paged.Bytes()
	}
	return n
}

// Pieces returns the number of copies in the batch.
func (b *Batch) Pieces() int {
	n := len(b.Src)
	if b.Paged != nil {
		n += b.Paged.Pieces()
	}
	return n
}

// Extents yields all pairs of a destination and a source: first the listed ones, then those of
// Paged.
func (b *Batch) Extents() iter.Seq2[Extent, Extent] {
	return func(yield func(dst, src Extent) bool) {
		for i := range b.Dst {
			if !yield(b.Dst[i], b.Src[i]) {
				return
			}
		}
		if b.Paged != nil {
			b.Paged.Extents()(yield)
		}
	}
}
