package mem

import (
	"fmt"
	"iter"

	"github.com/kvlane/kvlane/errdefs"
)

// Dependency is something a Batch may have to wait for: a stream.Ticket of any stream, usually.
type Dependency interface {
	// Done is closed when the dependency has resolved, well or badly.
	Done() <-chan struct{}
	// Err returns why it failed, or nil. It is valid once Done is closed.
	Err() error
}

// Batch is a set of copies with one completion: Src[i] to Dst[i] for every i, and Paged where it is not nil. Within a
// batch the copies may happen in any order, so no destination may overlap another extent of the same batch.
type Batch struct {
	Dst, Src []Extent
	Paged    *Paged
	// After holds what must resolve before the first byte moves. A dependency that failed fails the batch.
	After []Dependency
	// Awaited says that what computes beside the batch stands still until it is there, so that what the batch takes from it does not
	// count: a stream whose policy weighs that carries it as fast as it can.
	Awaited bool
}

// Validate reports the first thing wrong with the batch. It does not look for overlaps.
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

// Pieces returns the number of copies that the batch stands for.
func (b *Batch) Pieces() int {
	n := len(b.Src)
	if b.Paged != nil {
		n += b.Paged.Pieces()
	}
	return n
}

// Extents yields every (destination, source) pair of the batch, the listed ones first.
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
