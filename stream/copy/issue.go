package copy

import (
	"errors"
	"fmt"

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

// item is a step that was issued.
type item struct {
	op    *op
	event device.Event // done when the step is
	lost  bool         // something may have been issued, and no event tells when it is done
	last  bool         // nothing of op follows
	apart bool         // the device keeps no order between it and the queue
	calls int
	bytes int64 // that it copies
	// Positions up to which the step took memory: of descriptors and of staging. Zero: none.
	ringEnd, stageEnd uint64
	sums              []sumRows
}

// Issue implements ordered.Work: it issues a step.
func (o *op) Issue() (whole, ok bool) {
	s := o.stream
	sp, ok := s.room(o)
	if !ok {
		return false, false
	}
	it := s.step(o, sp)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls += it.calls
	if it.ringEnd > 0 {
		s.ring.take(it.ringEnd)
	}
	if it.stageEnd > 0 {
		s.staging.take(it.stageEnd)
	}
	if o.path != stream.PathNone { // else there is nothing to wait for
		s.push(it)
	}
	return it.last, true
}

// room reports whether o's pace, the device and the mover let another step of it follow, and where its descriptors go.
func (s *Stream) room(o *op) (sp span, ok bool) {
	m := s.movers[o.path]
	if m == nil {
		return span{}, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paced(o) {
		return span{}, false
	}
	if s.mayFollow(o.path) && (s.calls == 0 || s.calls+m.calls() <= maxCalls) {
		sp, ok = m.room(o)
	}
	if !ok {
		s.look() // who completes settles when it has given back
		return span{}, false
	}
	if o.Started.IsZero() {
		o.behind = s.inflight.n > 0
	}
	return sp, true
}

// mayFollow reports whether what travels by path may be issued behind what is in flight. What is apart follows only what
// travels by the same path, and is followed by nothing else. The caller holds the mutex.
func (s *Stream) mayFollow(path stream.Path) bool {
	if isApart(path) {
		return s.inflight.n == 0 || s.apart == s.inflight.n && s.apartBy == path
	}
	return s.apart == 0
}

// step issues a part of o, as much as its path takes at once, and makes sure of an event that ends it.
func (s *Stream) step(o *op, sp span) item {
	now := s.opts.Clock.Now()
	if o.Started.IsZero() {
		o.Started = now
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
	o.steps++
	o.sent += it.bytes
	if it.event == nil && !it.lost {
		s.fence(it, &err)
	}
	if err != nil {
		// A queue that refuses was broken by something before, maybe the batch's own first pieces: the event of that says how.
		o.Fail(o.failure(err), errors.Is(err, errdefs.ErrBroken))
	}
	it.last = done || err != nil
	s.pace(o, it, now)
	return *it
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
