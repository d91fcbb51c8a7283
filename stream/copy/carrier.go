package copy

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/move"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// MinCarried is the least number of batches that a Carrier's streams accept.
const MinCarried = move.MaxCalls

// Carrier is the path by RDMA NICs of copy streams: nic or nic-soft. Several streams may share it.
// After it has failed one of them, streams that have other paths no longer use it. Do not change
// the fields once a stream has it.
//
// A batch that the NICs fail breaks the stream. NICs refuse a batch if they have failed before or
// no longer reach its memory. Then the stream copies it by copy engine and gives the path up.
type Carrier struct {
	// Path is the path in completions: stream.PathNIC or stream.PathNICSoft.
	Path stream.Path
	// Open opens an ordered stream over the NICs, when the path is first chosen. The stream accepts
	// MinCarried batches, so that Submit does not block. It has deadlines: no ticket stays
	// unresolved because a NIC is silent. The copy stream closes it.
	Open func() (stream.Stream, error)
	// Reaches reports whether the NICs can access r. The result may become false while no batch
	// uses r.
	Reaches func(r *mem.Region) bool

	broken atomic.Pointer[error]
}

func (c *Carrier) validate(bad func(format string, args ...any)) {
	if c.Path.MovedBy() != stream.MovedByNIC {
		bad("path %s is not a path of NICs", c.Path)
	}
	if c.Open == nil || c.Reaches == nil {
		bad("Open and Reaches must be set")
	}
}

// Err returns why the NICs failed or refused a batch, or nil.
func (c *Carrier) Err() error {
	if err := c.broken.Load(); err != nil {
		return *err
	}
	return nil
}

// fail records the first cause for which the NICs are given up.
func (c *Carrier) fail(err error) { c.broken.CompareAndSwap(nil, &err) }

// nicFailure returns why the NICs of path p failed before, or nil. A stream forced onto the path
// uses them again.
func (s *Stream) nicFailure(p stream.Path) error {
	if c := s.opts.NIC; c != nil && c.Path == p && s.opts.Path != p {
		return c.Err()
	}
	return nil
}

// fallBack makes the next step of o use a copy engine. NICs that refuse a batch have not accessed
// its memory.
func (s *Stream) fallBack(o *op, err error) {
	s.opts.NIC.fail(err)
	if plan.Paths(s.able.Load()).Has(o.choice.Path) { // report it once
		o.givenUp = errors.Join(o.givenUp, fmt.Errorf("path %s: %w", o.choice.Path, err))
		s.removePath(o.choice.Path)
	}
	o.choice.Path, o.choice.Reason, o.planned = stream.PathCopyEngine, ReasonRefused, false
}
