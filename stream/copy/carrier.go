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

// MinCarried is how many batches a Carrier's streams have to have places for.
const MinCarried = move.MaxCalls

// Carrier is what copy streams have of RDMA NICs: the path nic, or nic-soft. Several streams use one at the same time, and all
// those that have other paths leave it once it has failed one of them. The fields stay as they are once a stream has it.
//
// A batch that the NICs fail breaks the stream, as any failure of the device does. One that they do not take, since they have
// failed before or do not reach its memory any more, is issued by copy engine, and the path given up.
type Carrier struct {
	// Path is what the copies are reported as: stream.PathNIC or stream.PathNICSoft.
	Path stream.Path
	// Open opens an ordered stream over the NICs, when a batch is first to travel by the path. It has places for MinCarried
	// batches, so that Submit does not block, and bounds its own waits: no ticket stays unresolved because a NIC is silent.
	// The copy stream closes it.
	Open func() (stream.Stream, error)
	// Reaches reports whether the NICs may copy from and to r. Memory may cease to be within reach while no batch uses it.
	Reaches func(r *mem.Region) bool

	broken atomic.Pointer[error]
}

func (c *Carrier) validate(bad func(format string, args ...any)) {
	if c.Path.MovedBy() != stream.MovedByNIC {
		bad("path %s is none of a NIC's", c.Path)
	}
	if c.Open == nil || c.Reaches == nil {
		bad("a NIC that cannot be opened, or not be asked what it reaches")
	}
}

// Err returns why the NICs failed a batch or took none, or nil.
func (c *Carrier) Err() error {
	if err := c.broken.Load(); err != nil {
		return *err
	}
	return nil
}

// fail notes why the NICs are of no use any more. The first cause stays.
func (c *Carrier) fail(err error) { c.broken.CompareAndSwap(nil, &err) }

// nicFailure returns why the NICs that p is the path of failed before, or nil. A stream that has no other path tries them again.
func (s *Stream) nicFailure(p stream.Path) error {
	if c := s.opts.NIC; c != nil && c.Path == p && s.opts.Path != p {
		return c.Err()
	}
	return nil
}

// refuse has o issued by copy engine, which its next step does: NICs that take no batch have not touched its memory.
func (s *Stream) refuse(o *op, err error) {
	s.opts.NIC.fail(err)
	if plan.Paths(s.able.Load()).Has(o.choice.Path) { // once
		o.lost = errors.Join(o.lost, fmt.Errorf("path %s: %w", o.choice.Path, err))
		s.giveUp(o.choice.Path)
	}
	o.choice.Path, o.choice.Reason, o.planned = stream.PathCopyEngine, ReasonRefused, false
}
