package nic

import (
	"fmt"
	"time"

	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/stream"
)

// reap takes completions, and reports whether there were any.
func (s *Stream) reap() bool {
	if s.outstanding == 0 {
		return false
	}
	worked := false
	for _, l := range s.rails {
		worked = !l.deaf && s.reapRail(l) || worked
	}
	return worked
}

func (s *Stream) reapRail(l *rail) bool {
	n, err := l.CQ.Poll(l.wcs)
	if err != nil {
		l.deaf = true
		s.breakDown(fmt.Errorf("NIC %s: %w", l.reg.Name(), err))
		return true
	}
	for i := range l.wcs[:n] {
		s.completed(l, &l.wcs[i])
	}
	if n > 0 {
		s.heard = time.Now()
	}
	return n > 0
}

// completed takes in one completion of l.
func (s *Stream) completed(l *rail, wc *rdma.WC) {
	index, seq, over := l.Completed(wc)
	if over == 0 {
		return
	}
	q := l.pairs[index]
	if wc.Status != rdma.WCSuccess {
		q.complete(seq, nil) // those before it went well
		s.fail(q, seq, wc)
	}
	q.complete(seq+1, nil)
	s.outstanding -= over
}

// settle resolves batches that have ended, from the oldest on, and reports whether there were any.
func (s *Stream) settle() bool {
	worked := false
	var flushed classes // by this call: everything that has ended before it is visible
	for {
		s.mu.Lock()
		o := s.head
		if o == nil || !o.posted || o.open > 0 {
			s.mu.Unlock()
			return worked
		}
		s.head = o.next
		if s.head == nil {
			s.tail = nil
		}
		s.mu.Unlock()
		s.flush(o, &flushed)
		s.resolve(o)
		worked = true
	}
}

// flush makes what was written to devices visible there.
func (s *Stream) flush(o *op, done *classes) {
	if s.opts.Flush == nil || o.failed != nil || o.started.IsZero() {
		return
	}
	for d := range maxDevice + 1 {
		if bit := classes(1) << d; o.uses.writes()&bit&^*done != 0 {
			if err := s.opts.Flush(d); err != nil {
				err = fmt.Errorf("batch %d by %s: flush writes to device %d: %w", o.ticket.ID(), s.path, d, err)
				o.fail(err)
				s.mu.Lock()
				s.breakBy(o.ticket.ID(), err)
				s.mu.Unlock()
				return
			}
			*done |= bit
		}
	}
}

// resolve ends o's ticket. Nothing touches its memory any more.
func (s *Stream) resolve(o *op) {
	err := s.verdict(o)
	c := stream.Completion{Path: s.path, Reason: ReasonLoopback, Started: o.started, Finished: time.Now()}
	switch {
	case o.started.IsZero():
		c.Path, c.Reason, c.Started = stream.PathNone, ReasonUnstarted, c.Finished
	case o.bytes == 0:
		c.Path, c.Reason = stream.PathNone, ReasonEmpty
	}
	if err == nil {
		c.Bytes, c.Pieces = o.bytes, o.pieces
	}
	s.giveBack(o.needs)
	// The ticket may be kept for long, and leads here as its driver: let the batch go.
	o.batch, o.needs, o.at, o.next = nil, nil, cursor{}, nil
	<-s.slots
	o.ticket.Resolve(c, err)
}
