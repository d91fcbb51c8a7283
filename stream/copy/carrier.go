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

// MinCarried is the number of batches that a Carrier's streams must at least accept.
const MinCarried = move.MaxCalls

// Carrier is a path of copy streams that uses RDMA NICs: nic or nic-soft. Several streams may share
// it. After its NICs have failed in one stream, streams with other paths stop using it. Do not
// change the fields after a stream was opened with it.
//
// A batch that fails on the NICs breaks the stream. NICs refuse a batch if they have failed before
// or can no longer access its memory. The stream then copies the batch by copy engine and stops
// using the path.
type Carrier struct {
	// Path is the path in completions: stream.PathNIC or stream.PathNICSoft.
	Path stream.Path
	// Open opens an ordered stream over the NICs. It is called when the path is first chosen. The
	// stream must accept MinCarried batches, so that Submit does not block, and must have
	// deadlines, so that every ticket resolves even if a NIC does not respond. The copy stream
	// closes it.
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

// Err returns the reason why NICs have failed or refused a batch, or nil.
func (c *Carrier) Err() error {
	if err := c.broken.Load(); err != nil {
		return *err
	}
	return nil
}

// fail records the first reason to stop using the NICs.
func (c *Carrier) fail(err error) { c.broken.CompareAndSwap(nil, &err) }

// nicFailure returns the earlier failure of the NICs of path p, or nil. It returns nil for a stream
// that is forced onto the path, which tries again.
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
