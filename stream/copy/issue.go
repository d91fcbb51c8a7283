package copy

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
)

// Bounds of what is given to the device at once. Drivers block the caller when about a thousand calls are pending, which
// would hold up Submit, so the stream stays below and waits in a goroutine of its own.
const (
	maxCalls   = 512
	engineStep = 64   // copies a step
	batchStep  = 1024 // copies in one call of a BatchCopier
	batchCalls = 64   // what such a call counts for
	kernelStep = 16   // launches a step, at most
)

// item is a step that was issued, or the end of an op that needs no step.
type item struct {
	op      *op
	event   device.Event // done when the step is; nil where nothing was issued
	lost    bool         // something may have been issued, and no event tells when it is done
	last    bool         // nothing of op follows
	calls   int
	ringEnd uint64
}

// issueLoop is the issuer: it issues what Submit left behind, until the stream is closing and the backlog is empty.
func (s *Stream) issueLoop() {
	defer close(s.inflight)
	var unmet <-chan struct{}
	for {
		select {
		case <-s.wake:
		case <-unmet:
		}
		var over bool
		if unmet, over = s.drain(-1); over {
			return
		}
	}
}

// drain issues from the backlog's head until it is empty, must wait, or steps are used up (negative: no bound). If the
// head waits for a dependency, drain returns the channel that ends that. over says that nothing will ever follow.
//
// Only one goroutine at a time gets past the first lines: the order of the backlog must be the order of the queue, and a
// queue has one user at a time. That is a flag, not the mutex, since issuing calls the driver.
func (s *Stream) drain(steps int) (unmet <-chan struct{}, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.issuing {
		return nil, false // who issues looks at the backlog again before he stops
	}
	s.issuing = true
	for ; s.head != nil && steps != 0; steps-- {
		var more bool
		if more, unmet = s.advance(s.head); !more {
			break
		}
	}
	s.issuing = false
	if steps >= 0 && (s.head != nil || s.closing) {
		s.poke() // this was Submit: the issuer goes on
	}
	return unmet, s.closing && s.head == nil
}

// advance takes one step of o, the backlog's head, and reports whether drain can go on. It is called with the mutex held
// and releases it while it calls dependencies or the driver.
func (s *Stream) advance(o *op) (more bool, unmet <-chan struct{}) {
	if stop := s.mustStop(o); stop != nil {
		s.end(o, stop)
		return true, nil
	}
	if o.control != nil {
		s.runInTurn(o)
		return true, nil
	}
	if o.started.IsZero() && o.met < len(o.batch.After) {
		s.mu.Unlock()
		unmet, err := o.unmet()
		s.mu.Lock()
		if err != nil {
			s.end(o, err)
			return true, nil
		}
		if unmet != nil {
			return false, unmet
		}
	}
	sp, ok := s.room(o)
	if !ok {
		return false, nil // the completer wakes the issuer when it has given back
	}
	s.mu.Unlock()
	it := s.step(o, sp)
	s.mu.Lock()
	s.calls += it.calls
	if s.ring != nil {
		s.ring.take(it.ringEnd)
	}
	if o.err != nil {
		s.breakBy(o.ticket.ID(), o.err)
	}
	if it.last {
		s.pop()
	}
	s.inflight <- it
	return true, nil
}

// mustStop returns why no more of o may be issued, or nil.
func (s *Stream) mustStop(o *op) error {
	switch {
	case s.cause != nil:
		return fmt.Errorf("%w: %w", errdefs.ErrBroken, s.cause)
	case o.canceled.Load():
		return fmt.Errorf("batch was stopped: %w", errdefs.ErrCanceled)
	case s.closing && o.started.IsZero():
		return fmt.Errorf("stream closes before the batch has started: %w: %w", errdefs.ErrCanceled, errdefs.ErrClosed)
	}
	return nil
}

// end takes o, the backlog's head, out without issuing any more of it. What was issued of it has its events on the way,
// and the completer comes to this end after them.
func (s *Stream) end(o *op, why error) {
	s.pop()
	if o.control != nil {
		o.control.err = why
		close(o.control.done)
		<-s.slots
		return
	}
	o.err = fmt.Errorf("batch %d: %w", o.ticket.ID(), why)
	s.inflight <- item{op: o, last: true}
}

func (s *Stream) pop() {
	o := s.head
	s.head, o.next = o.next, nil
	if s.head == nil {
		s.tail = nil
	}
}

// unmet looks at the dependencies in turn. It returns the channel of one that has not resolved, or why one failed.
func (o *op) unmet() (<-chan struct{}, error) {
	for ; o.met < len(o.batch.After); o.met++ {
		d := o.batch.After[o.met]
		select {
		case <-d.Done():
			if err := d.Err(); err != nil {
				return nil, fmt.Errorf("dependency %d failed: %w", o.met, err)
			}
		default:
			return d.Done(), nil
		}
	}
	return nil, nil
}

// room reports whether the device and the ring can take another step of o, and where its descriptors go.
func (s *Stream) room(o *op) (span, bool) {
	if s.calls > 0 && s.calls+stepCalls(o.path) > maxCalls {
		return span{}, false
	}
	if o.path != stream.PathKernel {
		return span{}, true
	}
	return s.ring.reserve(o.at.descriptorBytes(o.stats.descs))
}

// stepCalls is the most calls that a step of path counts for, with the event's.
func stepCalls(path stream.Path) int {
	switch path {
	case stream.PathCopyEngine:
		return engineStep + 1
	case stream.PathCopyEngineBatch:
		return batchCalls + 1
	case stream.PathKernel:
		return kernelStep + 1
	case stream.PathNone, stream.PathPosix:
	}
	return 0
}

// step issues a part of o, as much as its path takes at once, and records the event that ends it.
func (s *Stream) step(o *op, sp span) item {
	if o.started.IsZero() {
		o.started = time.Now()
	}
	it := item{op: o}
	var done bool
	var err error
	switch o.path {
	case stream.PathCopyEngine:
		done, err = s.stepEngine(o, &it)
	case stream.PathCopyEngineBatch:
		done, err = s.stepBatch(o, &it)
	case stream.PathKernel:
		done, err = s.stepKernel(o, sp, &it)
	case stream.PathNone, stream.PathPosix:
		it.last = true
		return it
	}
	s.fence(&it, &err)
	if err != nil {
		o.err = o.failure(err)
	}
	it.last = done || err != nil
	return it
}

// fence records the event that tells when the step is done. A call that failed may still have started something, so a
// failed step is fenced too; and as a record can be what failed, it gets a second chance. Where that fails as well,
// nothing proves when the device stops, and the item is lost.
func (s *Stream) fence(it *item, err *error) {
	it.calls++
	e, recordErr := s.queue.Record()
	if recordErr != nil {
		*err = errors.Join(*err, fmt.Errorf("record event: %w", recordErr))
		if e, recordErr = s.queue.Record(); recordErr != nil {
			it.lost = true
			return
		}
	}
	it.event = e
}

// runInTurn runs the control o, the backlog's head.
func (s *Stream) runInTurn(o *op) {
	c := o.control
	s.pop()
	if !c.abandoned {
		s.mu.Unlock()
		if c.wait != nil {
			c.err = s.queue.Wait(c.wait)
		} else {
			c.event, c.err = s.queue.Record()
		}
		s.mu.Lock()
	}
	if c.abandoned && c.event != nil {
		c.event.Close()
	}
	close(c.done)
	<-s.slots
}

// breakBy makes the stream refuse and fail all that comes after batch id. The first cause in the order of the stream stays.
func (s *Stream) breakBy(id uint64, cause error) {
	if s.cause != nil && s.causeID <= id {
		return
	}
	if s.cause == nil && !s.closing {
		close(s.down)
	}
	s.cause, s.causeID = cause, id
	s.poke()
}
