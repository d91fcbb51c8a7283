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

// canStep reports whether the pace, the limits of work in flight and the mover permit another step
// of o.
func (s *Stream) canStep(o *op, m move.Mover) bool {
	if s.paced(o) {
		return false
	}
	pending, ok := s.inFlight.admits(o.choice.Path)
	if !ok || !m.Fits(&o.work, pending) {
		s.wakeCompleter() // the completer resumes issuing after it has released resources
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
		// A failed call may have started work, so a failed step needs an event too. If no event can
		// be recorded, the end of the work cannot be detected, and the step is lost.
		it.Calls++
		it.Event = move.Record(s.queue, &err)
		it.Lost = it.Event == nil
	}
	if err != nil {
		// The queue broke earlier, perhaps in a step of this batch. The event of that step returns
		// the cause.
		o.Fail(o.failure(err), errors.Is(err, errdefs.ErrBroken))
	}
	it.last = done || err != nil
	s.pace(o, it, now)
	return it
}

// move issues a step of o by its mover. done is set if it was the last step.
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

// switchTo orders later steps on path after steps on the previous path. PathNone stands for a call
// on the stream's queue.
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

// Pacing: a batch whose choice has a Pace uses only a part of the link. Each step begins no earlier
// than the share of the Pace of the previous step after that step's start. Other batches do not
// wait.

// paced reports whether o's next step must wait, and if so starts a timer that resumes issuing.
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

// pace records a step that began at begun, with the share of o's pace that its bytes have.
func (s *Stream) pace(o *op, it *item, begun time.Time) {
	if o.choice.Pace == 0 {
		return
	}
	share := time.Duration(float64(o.choice.Pace) * float64(it.Bytes) / float64(o.work.Bytes))
	s.pacer.Next(begun, share)
}
