package nic

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/rdma"
)

// fail notes the failure of the request at seq. A flush is the consequence of another failure, which came before.
func (s *Stream) fail(q *pair, seq uint64, wc *rdma.WC) {
	o := q.owner(seq)
	flush := wc.Status == rdma.WCWRFlushErr
	if flush {
		q.rail.counters.flushed.Add(1)
	} else {
		q.rail.counters.failed.Add(1)
	}
	if flush && o.failed != nil {
		return
	}
	err := fmt.Errorf("batch %d by %s: %w", o.ticket.ID(), s.path, q.failedRequest(seq, wc))
	if flush && s.lost {
		err = s.givenUp(o, s.Err()) // by this stream
	}
	if flush {
		o.failed, o.flushed = err, true
	} else {
		o.fail(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !flush || s.cause == nil {
		s.breakBy(o.ticket.ID(), err)
	}
}

// breakBy makes the stream refuse and fail all that comes after batch id. The first cause in the order of the stream stays.
// The caller holds the mutex.
func (s *Stream) breakBy(id uint64, cause error) {
	if s.cause != nil && s.causeID <= id {
		return
	}
	if s.cause == nil {
		for _, l := range s.rails {
			l.counters.broken.Add(1)
		}
		if !s.closing {
			close(s.down)
		}
	}
	s.cause, s.causeID = cause, id
	s.poke()
}

// watch has the scheduler look for a NIC's silence after a while.
func (s *Stream) watch() {
	if !s.watching && s.outstanding > 0 {
		s.watching = true
		s.watchdog.Reset(s.opts.Timeout)
	}
}

// checkSilence breaks the stream if nothing has completed for too long.
func (s *Stream) checkSilence() {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	s.watching = false
	if s.outstanding == 0 {
		return
	}
	left := s.opts.Timeout - time.Since(s.heard)
	if left <= 0 {
		if !s.lost {
			s.breakDown(fmt.Errorf("%d requests are outstanding and none has completed for %v: %w", s.outstanding, s.opts.Timeout, context.DeadlineExceeded))
		}
		left = s.opts.Timeout
	}
	s.watching = true
	s.watchdog.Reset(left)
}

// breakDown breaks the stream for a failure that is of no request: completions will not tell any more when the NICs have
// stopped. The caller has the turn.
func (s *Stream) breakDown(err error) {
	s.mu.Lock()
	id := s.lastID
	if s.head != nil {
		id = s.head.ticket.ID()
	}
	s.mu.Unlock()
	s.giveUp(id, fmt.Errorf("by %s: %w", s.path, err))
}

// giveUp breaks the stream by a failure at batch id after which completions may not come.
func (s *Stream) giveUp(id uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		s.keep(err) // the cause is what tickets tell
	}
	s.breakBy(id, err)
	s.lost, s.tried = true, false
	s.poke()
}

// raise notes that a device tells of a failure of its own, or of a queue. It does not block.
func (s *Stream) raise(alarm error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.alarm == nil {
		s.alarm, s.alarmed = alarm, time.Now()
	}
	s.poke()
}

// heedAlarm breaks the stream if it was not broken within flushTime of an alarm, by what completions say: that is more.
func (s *Stream) heedAlarm() {
	s.mu.Lock()
	alarm, left, broken := s.alarm, flushTime-time.Since(s.alarmed), s.cause != nil
	s.mu.Unlock()
	if alarm == nil {
		return
	}
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	switch {
	case s.lost || broken && s.outstanding == 0: // there is no more to do
	case left > 0:
		s.watching = true
		s.watchdog.Reset(left)
	default:
		s.breakDown(alarm)
	}
}

// flushTime is how long a queue pair in error has to flush its requests before it is reset; Options.Timeout if that is less.
const flushTime = 100 * time.Millisecond

// stopLost ends what is outstanding on a stream that has given up on its NICs. Queue pairs are moved to QPSErr, where their
// requests complete as flushed; those that have requests left after flushTime are reset. What is
// refused is tried again when the scheduler is woken next, by Close or the watchdog.
func (s *Stream) stopLost() {
	cause := s.Err()
	if cause == nil {
		return
	}
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	if !s.lost || s.outstanding == 0 {
		return
	}
	s.tried = true
	s.reap() // a queue pair that has flushed everything is left alone
	next := s.opts.Timeout
	for _, q := range s.pairs {
		left := q.Outstanding()
		if left == 0 {
			continue
		}
		wait, err := q.Stop(min(flushTime, s.opts.Timeout))
		switch {
		case err != nil:
			s.refused(q, err)
		case wait > 0:
			next = min(next, wait)
		default:
			s.outstanding -= left
			q.complete(q.Posted(), func(o *op) {
				if o.failed == nil {
					o.fail(s.givenUp(o, cause))
				}
			})
		}
	}
	s.settle()
	if s.outstanding > 0 {
		s.watching = true
		s.watchdog.Reset(next)
	}
}

// refused notes that a queue pair could not be stopped, once.
func (s *Stream) refused(q *pair, err error) {
	if q.refused {
		return
	}
	q.refused = true
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep(fmt.Errorf("NIC %s: %w", q.rail.reg.Name(), err))
}

// givenUp is the error of a batch whose requests the NIC did not fail by itself.
func (s *Stream) givenUp(o *op, cause error) error {
	return fmt.Errorf("batch %d by %s: its requests were given up: %w", o.ticket.ID(), s.path, cause)
}

// keep notes a failure that no ticket tells, for Close. The caller holds the mutex.
func (s *Stream) keep(err error) { s.unsaid = errors.Join(s.unsaid, err) }
