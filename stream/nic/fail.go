package nic

import (
	"context"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/rdma"
)

// failRequest fails the batch of the request at seq. A flushed request is the consequence of an
// earlier failure. The caller holds hw.
func (s *Stream) failRequest(q *pair, seq uint64, wc *rdma.WC) {
	o := q.owner(seq)
	flush := wc.Status == rdma.WCWRFlushErr
	if flush {
		q.rail.counters.flushed.Add(1)
	} else {
		q.rail.counters.failed.Add(1)
	}
	var err error = q.failedRequest(seq, wc)
	if flush && s.lost {
		err = givenUp(s.Err()) // flushed by stopLost
	}
	s.failBatch(o, err, flush)
}

// failBatch fails o and breaks the stream. flush marks the consequence of another failure. The
// caller holds hw.
func (s *Stream) failBatch(o *op, err error, flush bool) {
	o.Fail(fmt.Errorf("batch %d by %s: %w", o.ID(), s.path, err), flush)
	s.stopReporting(o)
	s.countBroken()
}

func (s *Stream) countBroken() {
	s.broken.Do(func() {
		for _, l := range s.rails {
			l.counters.broken.Add(1)
		}
	})
}

// guard handles conditions without completions: a NIC that does not respond, asynchronous device
// errors, and requests that must be stopped. It returns when ctx ends.
func (s *Stream) guard(ctx context.Context) {
	defer s.watchdog.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.guardWake:
		case <-s.watchdog.Chan():
		}
		s.checkHealth()
		s.stopLost()
		s.life.Issue(-1)
	}
}

func (s *Stream) wakeGuard() {
	select {
	case s.guardWake <- struct{}{}:
	default:
	}
}

// watch starts the watchdog unless it is already running. The caller holds hw.
func (s *Stream) watch() {
	if !s.watching && s.outstanding > 0 {
		s.watching = true
		s.watchdog.Reset(s.opts.Timeout)
	}
}

// breakDown breaks the stream because of a failure that belongs to no request, and stops its
// requests. The caller holds hw.
func (s *Stream) breakDown(err error) {
	s.life.Break(fmt.Errorf("by %s: %w", s.path, err))
	s.countBroken()
	s.giveUp()
}

// giveUp records that completions may no longer arrive, and makes the guard stop outstanding
// requests. The caller holds hw.
func (s *Stream) giveUp() {
	s.lost = true
	s.wakeGuard()
}

// setDeviceErr records the first asynchronous error of a device or a queue pair. It does not block.
func (s *Stream) setDeviceErr(deviceErr error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deviceErr == nil {
		s.deviceErr, s.deviceErrAt = deviceErr, s.opts.Clock.Now()
	}
	s.wakeGuard()
}

// checkHealth breaks the stream if no request has completed for Options.Timeout. After an
// asynchronous error it breaks the stream only if no failed completion has done so within
// flushTime, because a completion has more detail. Otherwise it restarts the watchdog.
func (s *Stream) checkHealth() {
	s.mu.Lock()
	why, since, limit := s.deviceErr, s.deviceErrAt, flushTime
	s.mu.Unlock()
	s.hw.Lock()
	defer s.hw.Unlock()
	s.watching = false
	if s.lost || s.outstanding == 0 && (why == nil || s.Err() != nil) {
		return
	}
	if why == nil {
		why = fmt.Errorf("%d requests are outstanding and none has completed for %v: %w", s.outstanding, s.opts.Timeout, context.DeadlineExceeded)
		since, limit = s.lastCompletion, s.opts.Timeout
	}
	left := limit - s.opts.Clock.Since(since)
	if left <= 0 {
		s.breakDown(why)
		return
	}
	s.watching = true
	s.watchdog.Reset(left)
}

// flushTime is the time that a queue pair in the error state has to flush its requests before it is
// reset. If Options.Timeout is shorter, it is used instead.
const flushTime = 100 * time.Millisecond

// stopLost ends the outstanding requests of a lost stream. It moves queue pairs to QPSErr, in which
// requests complete as flushed, and resets pairs that still have requests after flushTime. After an
// error, the watchdog or Close wakes the guard for a retry.
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
	s.reap() // pairs that have flushed everything need no reset
	next := s.opts.Timeout
	for _, q := range s.pairs {
		left := q.Outstanding()
		if left == 0 {
			continue
		}
		wait, err := q.Stop(min(flushTime, s.opts.Timeout))
		switch {
		case err != nil:
			s.keepStopErr(q, err)
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

// keepStopErr records the first failure to stop a queue pair.
func (s *Stream) keepStopErr(q *pair, err error) {
	if q.stopFailed {
		return
	}
	q.stopFailed = true
	s.life.Keep(fmt.Errorf("NIC %s: %w", q.rail.reg.Name(), err))
}

// givenUp returns the error of a batch whose requests the stream has stopped.
func givenUp(cause error) error { return fmt.Errorf("its requests were abandoned: %w", cause) }
