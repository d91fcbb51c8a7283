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
	engineStep = 64  // copies a step
	batchStep  = 256 // copies in one call of a BatchCopier: the device copies while the driver looks at the next
	batchCalls = 8   // what such a call counts for
	kernelStep = 16  // launches a step, at most
)

// item is a step that was issued, or the end of an op that needs no step.
type item struct {
	op    *op
	event device.Event // done when the step is; nil where nothing was issued
	lost  bool         // something may have been issued, and no event tells when it is done
	last  bool         // nothing of op follows
	apart bool         // the device keeps no order between it and the queue
	calls int
	bytes int64 // that it copies
	// Positions up to which the step took memory: of descriptors and of staging. Zero: none.
	ringEnd, stageEnd uint64
	sums              []sumRows
}

// issueLoop is the issuer: it issues what Submit left behind, until the stream is closing and the backlog is empty.
func (s *Stream) issueLoop() {
	defer s.lastIssued()
	pace := time.NewTimer(0)
	defer pace.Stop()
	var unmet <-chan struct{}
	for {
		select {
		case <-s.wake:
		case <-unmet:
		case <-pace.C:
		}
		var over bool
		if unmet, over = s.drain(-1); over {
			return
		}
		if wait, ok := s.pause(); ok {
			pace.Reset(wait)
		}
	}
}

// lastIssued says that nothing will be in flight but what is.
func (s *Stream) lastIssued() {
	s.mu.Lock()
	s.issued = true
	s.mu.Unlock()
	s.look()
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
		if !s.mayFollow(o) {
			s.look()
			return false, nil
		}
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
	if s.paced(o) {
		return false, nil // the issuer's timer wakes it
	}
	sp, ok := s.room(o)
	if !ok {
		s.look() // who completes wakes the issuer when it has given back
		return false, nil
	}
	if o.started.IsZero() {
		o.behind = s.inflight.n > 0
	}
	s.mu.Unlock()
	it := s.step(o, sp)
	s.mu.Lock()
	s.calls += it.calls
	if it.ringEnd > 0 {
		s.ring.take(it.ringEnd)
	}
	if it.stageEnd > 0 {
		s.staging.take(it.stageEnd)
		s.chunks++
	}
	if o.err != nil {
		s.breakBy(o.ticket.ID(), o.err)
	}
	s.follow(it)
	for _, it := range s.joined {
		s.follow(it)
	}
	clear(s.joined)
	s.joined = s.joined[:0]
	return true, nil
}

// follow hands an item of the backlog's head to who completes.
func (s *Stream) follow(it item) {
	if it.last {
		s.pop()
	}
	s.push(it)
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
	s.push(item{op: o, last: true})
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

// room reports whether the device and the mover can take another step of o, and where its descriptors go.
func (s *Stream) room(o *op) (span, bool) {
	m := s.movers[o.path]
	if m == nil {
		return span{}, true
	}
	if !s.mayFollow(o) || s.calls > 0 && s.calls+m.calls() > maxCalls {
		return span{}, false
	}
	return m.room(o)
}

// mayFollow reports whether o may be issued behind what is in flight. What is apart follows only what travels by the same
// path, and is followed by nothing else. The caller holds the mutex.
func (s *Stream) mayFollow(o *op) bool {
	if o.control == nil && isApart(o.path) {
		return s.inflight.n == 0 || s.apart == s.inflight.n && s.apartBy == o.path
	}
	return s.apart == 0
}

// step issues a part of o, as much as its path takes at once, and makes sure of an event that ends it.
func (s *Stream) step(o *op, sp span) item {
	now := time.Now()
	if o.started.IsZero() {
		o.started = now
	}
	m := s.movers[o.path]
	if m == nil {
		return item{op: o, last: true}
	}
	it := &s.stepping
	*it = item{op: o}
	o.held, s.waited = o.held || s.waited, false
	var done bool
	err := s.turnTo(o.path)
	if err == nil {
		done, err = m.step(o, sp, it)
	}
	if err != nil {
		// What joined stays in the backlog, which the failure ends.
		s.joined = s.joined[:0]
	}
	o.steps++
	o.sent += it.bytes
	if it.event == nil && !it.lost {
		s.fence(it, &err)
	}
	if err != nil {
		o.err = o.failure(err)
	}
	it.last = done || err != nil
	s.pace(o, it, now)
	for i := range s.joined {
		s.joinedAt(&s.joined[i], now)
		o.joint = true
	}
	return *it
}

// joinedAt notes that a batch began at now, in a step of another, whose event comes before it.
func (s *Stream) joinedAt(it *item, now time.Time) {
	o := it.op
	o.started, o.joint = now, true
	o.steps++
	o.sent += it.bytes
	s.pace(o, it, now)
}

// fence records the event that tells when the step is done. A call that failed may still have started something, so a
// failed step is fenced too. Where nothing proves when the device stops, the item is lost.
func (s *Stream) fence(it *item, err *error) {
	it.calls++
	it.event = recordTwice(s.queue, err)
	it.lost = it.event == nil
}

// recordTwice records an event of q. As a record can be what failed, it gets a second chance; the first failure is added
// to err all the same. Without an event it returns nil.
func recordTwice(q device.Queue, err *error) device.Event {
	e, recordErr := q.Record()
	if recordErr == nil {
		return e
	}
	*err = errors.Join(*err, fmt.Errorf("record event: %w", recordErr))
	if e, recordErr = q.Record(); recordErr != nil {
		return nil
	}
	return e
}

// runInTurn runs the control o, the backlog's head.
func (s *Stream) runInTurn(o *op) {
	c := o.control
	s.pop()
	if !c.abandoned {
		s.mu.Unlock()
		c.err = s.act(c)
		s.mu.Lock()
	}
	if c.abandoned && c.event != nil {
		c.event.Close()
	}
	close(c.done)
	<-s.slots
}

// act does what c asks for. What other queues of the stream hold comes before it.
func (s *Stream) act(c *control) error {
	if err := s.turnTo(stream.PathNone); err != nil {
		return err
	}
	if c.wait != nil {
		s.waited = true
		return s.queue.Wait(c.wait)
	}
	var err error
	c.event, err = s.queue.Record()
	return err
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
