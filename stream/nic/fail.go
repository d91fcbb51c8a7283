package nic

import (
	"context"
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
	var err error = q.failedRequest(seq, wc)
	if flush && s.lost {
		err = givenUp(s.Err()) // by this stream
	}
	s.failBatch(o, err, flush)
}

// failBatch notes how the NIC failed o, which breaks the stream. flush: as the consequence of another failure. The caller holds hw.
func (s *Stream) failBatch(o *op, err error, flush bool) {
	o.Fail(fmt.Errorf("batch %d by %s: %w", o.ID(), s.path, err), flush)
	s.hush(o)
	s.countBroken()
}

func (s *Stream) countBroken() {
	s.broken.Do(func() {
		for _, l := range s.rails {
			l.counters.broken.Add(1)
		}
	})
}

// guard looks after what no completion tells: a NIC's silence, its alarms, and requests that have to be stopped.
func (s *Stream) guard(ctx context.Context) {
	defer s.watchdog.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.alert:
		case <-s.watchdog.Chan():
		}
		s.checkHealth()
		s.stopLost()
		s.life.Issue(-1)
	}
}

func (s *Stream) wakeGuard() {
	select {
	case s.alert <- struct{}{}:
	default:
	}
}

// watch has the guard look for a NIC's silence after a while.
func (s *Stream) watch() {
	if !s.watching && s.outstanding > 0 {
		s.watching = true
		s.watchdog.Reset(s.opts.Timeout)
	}
}

// breakDown breaks the stream for a failure that is of no request: completions will not tell any more when the NICs have
// stopped. The caller holds hw.
func (s *Stream) breakDown(err error) {
	s.life.Break(fmt.Errorf("by %s: %w", s.path, err))
	s.countBroken()
	s.giveUp()
}

// giveUp says that completions may not come any more.
func (s *Stream) giveUp() {
	s.lost = true
	s.wakeGuard()
}

// raise notes that a device tells of a failure of its own, or of a queue. It does not block.
func (s *Stream) raise(alarm error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.alarm == nil {
		s.alarm, s.alarmed = alarm, s.opts.Clock.Now()
	}
	s.wakeGuard()
}

// checkHealth breaks the stream if nothing has completed for too long, or if it was not broken within flushTime of an alarm by
// what completions say: that is more. Otherwise it has the guard come back.
func (s *Stream) checkHealth() {
	s.mu.Lock()
	why, since, limit := s.alarm, s.alarmed, flushTime
	s.mu.Unlock()
	s.hw.Lock()
	defer s.hw.Unlock()
	s.watching = false
	if s.lost || s.outstanding == 0 && (why == nil || s.Err() != nil) {
		return
	}
	if why == nil {
		why = fmt.Errorf("%d requests are outstanding and none has completed for %v: %w", s.outstanding, s.opts.Timeout, context.DeadlineExceeded)
		since, limit = s.heard, s.opts.Timeout
	}
	left := limit - s.opts.Clock.Since(since)
	if left <= 0 {
		s.breakDown(why)
		return
	}
	s.watching = true
	s.watchdog.Reset(left)
}

// flushTime is how long a queue pair in error has to flush its requests before it is reset; Options.Timeout if that is less.
const flushTime = 100 * time.Millisecond

// stopLost ends what is outstanding on a stream that has given up on its NICs. Queue pairs are moved to QPSErr, where their
// requests complete as flushed; those that have requests left after flushTime are reset. What is refused is tried again when the
// guard is woken next, by Close or the watchdog.
func (s *Stream) stopLost() {
	cause := s.Err()
	if cause == nil {
		return
	}
	s.hw.Lock()
	defer s.hw.Unlock()
	if !s.lost || s.outstanding == 0 {
		return
	}
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
			q.complete(q.Posted(), func(o *op) { s.failBatch(o, givenUp(cause), true) })
		}
	}
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
	s.life.Keep(fmt.Errorf("NIC %s: %w", q.rail.reg.Name(), err))
}

// givenUp is the error of a batch whose requests the NIC did not fail by itself.
func givenUp(cause error) error { return fmt.Errorf("its requests were given up: %w", cause) }
