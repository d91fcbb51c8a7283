package copy

import (
	"context"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
)

// completeLoop is the completer: it waits for the events of what was issued, in order, and resolves tickets.
func (s *Stream) completeLoop() {
	held := false // some ticket is quarantined; those after it wait, since tickets resolve in order
	for it := range s.inflight {
		quiet, err := it.wait()
		s.giveBack(it, err)
		held = held || !quiet
		switch {
		case !it.last:
		case held:
			s.mu.Lock()
			s.quarantined = append(s.quarantined, it.op)
			s.mu.Unlock()
		default:
			s.resolve(it.op)
		}
	}
}

// wait waits until the step is done. quiet is false where the device cannot say that it has stopped. There is no
// deadline: whoever waits for the ticket has one, the memory does not.
func (it *item) wait() (quiet bool, err error) {
	if it.lost {
		return false, nil // the issuer has the error
	}
	if it.event == nil {
		return true, nil
	}
	defer it.event.Close()
	if err := it.event.Wait(context.Background()); err != nil {
		quiet, _ = it.event.Done()
		return quiet, err
	}
	return true, nil
}

// giveBack frees what the step held, and breaks the stream if the step failed. The ring is given back even then: a broken
// stream writes no more descriptors.
func (s *Stream) giveBack(it item, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls -= it.calls
	if s.ring != nil {
		s.ring.giveBack(it.ringEnd)
	}
	if err != nil {
		if o := it.op; o.deviceErr == nil {
			o.deviceErr = o.failure(err)
		}
		s.breakBy(it.op.ticket.ID(), it.op.deviceErr)
	}
	if s.head != nil {
		s.poke()
	}
}

// resolve ends o's ticket. Nothing touches its memory any more.
func (s *Stream) resolve(o *op) {
	err := s.verdict(o)
	c := stream.Completion{Path: o.path, Reason: o.reason, Finished: time.Now()}
	switch {
	case o.started.IsZero():
		c.Path, c.Reason = stream.PathNone, ReasonUnstarted
		c.Started = c.Finished
	default:
		c.Started = o.started
	}
	if err == nil {
		c.Bytes, c.Pieces = o.stats.bytes, o.stats.pieces
	}
	t := o.ticket
	// The ticket may be kept for long, and leads here through its cancel function: let the batch go.
	o.batch, o.at = nil, cursor{}
	<-s.slots
	t.Resolve(c, err)
}

// verdict returns the error of o's ticket. What came after the failure that broke the stream has failed too, even if its
// own copies went well.
func (s *Stream) verdict(o *op) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.cause != nil && s.causeID < o.ticket.ID() && (o.err == nil || o.deviceErr != nil):
		return fmt.Errorf("batch %d: %w: %w", o.ticket.ID(), errdefs.ErrBroken, s.cause)
	case o.deviceErr != nil:
		return o.deviceErr
	}
	return o.err
}

// failure wraps what the device said about o.
func (o *op) failure(cause error) error {
	return fmt.Errorf("batch %d by %s: %w", o.ticket.ID(), o.path, cause)
}
