package copy

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/move"
)

// Issue implements ordered.Work. It issues one step.
func (o *op) Issue() (whole, ok bool) {
	s, m := o.stream, o.stream.movers[o.choice.Path]
	if o.work.Runs == 0 { // nothing to copy and nothing to wait for
		o.start()
		return true, true
	}
	if !s.canStep(o, m) {
		return false, false
	}
	it := s.step(o, m)
	s.push(it)
	return it.last, true
}

// start records the time of o's first step. It returns the current time.
func (o *op) start() time.Time {
	now := o.stream.opts.Clock.Now()
	if o.Started.IsZero() {
		o.Started = now
	}
	return now
}

// canStep reports whether the pace, the work in pending and the mover allow another step of o.
func (s *Stream) canStep(o *op, m move.Mover) bool {
	if s.paced(o) {
		return false
	}
	pending, ok := s.inFlight.admits(o.choice.Path)
	if !ok || !m.Fits(&o.work, pending) {
		s.wakeCompleter() // it resumes issuing after it releases resources
		return false
	}
	if o.Started.IsZero() {
		o.work.At.Behind = pending.Steps > 0
	}
	return true
}

// step issues as much of o as its path takes at once, followed by an event. The result is valid
// until the next call.
func (s *Stream) step(o *op, m move.Mover) *item {
	now := o.start()
	it := &s.stepping
	*it = item{op: o}
	o.afterEvent, s.waitedForEvent = o.afterEvent || s.waitedForEvent, false
	var done bool
	err := s.switchTo(o.choice.Path)
	if err == nil {
		done, err = s.move(o, m, it)
	}
	o.steps++
	o.work.Sent += it.Bytes
	if it.Event == nil && !it.Lost {
		// A failed call may have started work, so a failed step gets an event too. Without an event
		// nothing proves when the device stops: the step is lost.
		it.Calls++
		it.Event = move.Record(s.queue, &err)
		it.Lost = it.Event == nil
	}
	if err != nil {
		// A broken queue has an earlier cause, maybe a step of this batch. That step's event has
		// it.
		o.Fail(o.failure(err), errors.Is(err, errdefs.ErrBroken))
	}
	it.last = done || err != nil
	s.pace(o, it, now)
	return it
}

// move issues a step of o by its mover.
func (s *Stream) move(o *op, m move.Mover, it *item) (done bool, err error) {
	if isUnordered(o.choice.Path) && o.afterEvent && o.steps == 0 {
		// The stream's queue waits for an event of another queue, which an unordered path does not
		// see. The event of this empty step follows it, and admits delays the next step until then.
		return false, nil
	}
	if err = s.nicFailure(o.choice.Path); err != nil {
		err = &move.Refused{Err: fmt.Errorf("it failed: %w", err)}
	} else {
		done, err = m.Step(&o.work, &it.Step)
	}
	if err != nil {
		if refused := (*move.Refused)(nil); errors.As(err, &refused) && s.opts.Path == stream.PathNone {
			s.fallBack(o, refused.Err)
			return false, nil
		}
	}
	if o.work.At.ReportsParts() {
		it.groups = o.work.At.Groups()
		if parts, ok := it.Event.(*move.Parts); ok {
			parts.To = o
		}
	}
	it.unordered = it.Event != nil && isUnordered(o.choice.Path)
	if c, ok := it.Event.(move.Carried); ok {
		o.carried.Store(c.Ticket)
		if o.Canceled() { // Cancel may have run before the ticket was stored
			c.Ticket.Cancel()
		}
	}
	return done, err
}

// switchTo orders later steps by path after steps of the path before. PathNone is a call on the
// stream's queue.
func (s *Stream) switchTo(path stream.Path) error {
	if s.latest == path && path != stream.PathNone {
		return nil
	}
	if j, ok := s.movers[s.latest].(move.Joiner); ok {
		if err := j.Join(); err != nil {
			return fmt.Errorf("switch from path %s to %s: %w", s.latest, path, err)
		}
	}
	s.latest = path
	return nil
}

// Pacing: a choice with a Pace may use its share of the link only. The next step begins no sooner
// than the time of the one before has passed. Other choices do not wait.

// paced reports whether o's next step must wait, and starts a timer that resumes issuing.
func (s *Stream) paced(o *op) bool {
	if o.choice.Pace == 0 {
		return false
	}
	wait := s.pacer.Next(s.opts.Clock.Now(), 0)
	if wait > 0 {
		o.paced = !o.Started.IsZero()
		s.pacing.Reset(wait)
	}
	return wait > 0
}

// pace counts a step that began at begun, with its share of o's pace by bytes.
func (s *Stream) pace(o *op, it *item, begun time.Time) {
	if o.choice.Pace == 0 {
		return
	}
	share := time.Duration(float64(o.choice.Pace) * float64(it.Bytes) / float64(o.work.Bytes))
	s.pacer.Next(begun, share)
}
