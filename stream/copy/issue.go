package copy

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/move"
)

// Issue implements ordered.Work: it issues a step.
func (o *op) Issue() (whole, ok bool) {
	s, m := o.stream, o.stream.movers[o.choice.Path]
	if o.work.Runs == 0 { // there is nothing to copy, and nothing to wait for
		o.start()
		return true, true
	}
	if !s.room(o, m) {
		return false, false
	}
	it := s.step(o, m)
	s.push(it)
	return it.last, true
}

// start notes when o's first step is issued, and returns the time.
func (o *op) start() time.Time {
	now := o.stream.opts.Clock.Now()
	if o.Started.IsZero() {
		o.Started, o.work.Begun = now, now.Sub(o.stream.epoch)
	}
	return now
}

// room reports whether o's pace, what is in flight and the mover let another step of it follow.
func (s *Stream) room(o *op, m move.Mover) bool {
	if s.paced(o) {
		return false
	}
	flight, ok := s.flight.admits(o.choice.Path)
	if !ok || !m.Room(&o.work, flight) {
		s.look() // who completes settles when it has given back
		return false
	}
	if o.Started.IsZero() {
		o.work.At.Behind = flight.Steps > 0
	}
	return true
}

// step issues a part of o, as much as its path takes at once, and makes sure of an event that ends it. What it returns is valid
// until the next call.
func (s *Stream) step(o *op, m move.Mover) *item {
	now := o.start()
	it := &s.stepping
	*it = item{op: o}
	o.held, s.waited = o.held || s.waited, false
	var done bool
	err := s.switchTo(o.choice.Path)
	if err == nil {
		done, err = s.move(o, m, it)
	}
	o.steps++
	o.work.Sent += it.Bytes
	if it.Event == nil && !it.Lost {
		// A call that failed may still have started something, so a failed step gets its event too. Where nothing proves when
		// the device stops, the item is lost.
		it.Calls++
		it.Event = move.Record(s.queue, &err)
		it.Lost = it.Event == nil
	}
	if err != nil {
		// A queue that refuses was broken by something before, maybe the batch's own first pieces: the event of that says how.
		o.Fail(o.failure(err), errors.Is(err, errdefs.ErrBroken))
	}
	it.last = done || err != nil
	s.pace(o, it, now)
	return it
}

// move has the mover issue a step of o.
func (s *Stream) move(o *op, m move.Mover, it *item) (done bool, err error) {
	if isApart(o.choice.Path) && o.held && o.steps == 0 {
		// The stream's queue was told to wait for somebody else's event, of which what runs apart from it knows nothing. The
		// event of this empty step comes after that, and flight.admits holds the next step until it is done.
		return false, nil
	}
	if err = s.nicFailure(o.choice.Path); err != nil {
		err = &move.Refused{Err: fmt.Errorf("it failed: %w", err)}
	} else {
		done, err = m.Step(&o.work, &it.Step)
	}
	if err != nil {
		if refused := (*move.Refused)(nil); errors.As(err, &refused) && s.opts.Path == stream.PathNone {
			s.refuse(o, refused.Err)
			return false, nil
		}
	}
	if o.work.At.Tells() {
		it.groups = o.work.At.Groups()
		if parts, ok := it.Event.(*move.Parts); ok {
			parts.To = o
		}
	}
	it.apart = it.Event != nil && isApart(o.choice.Path)
	if c, ok := it.Event.(move.Carried); ok {
		o.carried.Store(c.Ticket)
		if o.Canceled() { // by somebody who did not see the ticket
			c.Ticket.Cancel()
		}
	}
	return done, err
}

// switchTo lets path be what issues next. PathNone: a control.
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

// Pacing: a choice with a Pace may take no more than its share of the link, so the next step begins no sooner than the
// one before has had its time. Only steps of paced choices wait.

// paced reports whether o's next step has to wait, and has the issuer come back when it need not.
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

// pace counts a step that began at begun: its share of o's time, by bytes.
func (s *Stream) pace(o *op, it *item, begun time.Time) {
	if o.choice.Pace == 0 {
		return
	}
	share := time.Duration(float64(o.choice.Pace) * float64(it.Bytes) / float64(o.work.Bytes))
	s.pacer.Next(begun, share)
}
