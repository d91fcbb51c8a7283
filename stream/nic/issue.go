package nic

import (
	"fmt"
	"math"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma"
)

// issue posts requests of the oldest batch that is not posted whole, and reports whether it came further. The caller has
// the turn.
func (s *Stream) issue() bool {
	o := s.current()
	if o == nil {
		return false
	}
	if stop := s.mustStop(o); stop != nil {
		o.err = fmt.Errorf("batch %d: %w", o.ticket.ID(), stop)
		s.issued(o)
		return true
	}
	if o.started.IsZero() {
		if waiting, err := s.waits(o); err != nil {
			o.err = fmt.Errorf("batch %d: %w", o.ticket.ID(), err)
			s.issued(o)
			return true
		} else if waiting {
			return false
		}
		o.started = time.Now()
	}
	worked, done := s.fill(o)
	if s.post(o) && done {
		s.issued(o)
		return true
	}
	return worked
}

// current returns the oldest batch that is not posted whole, or nil.
func (s *Stream) current() *op {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unmet = nil
	return s.next
}

// issued says that nothing more of o, which is current, will be posted.
func (s *Stream) issued(o *op) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.posted = true
	s.next = o.next
}

// mustStop returns why no more of o may be posted, or nil.
func (s *Stream) mustStop(o *op) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.cause != nil:
		s.said = true
		return fmt.Errorf("%w: %w", errdefs.ErrBroken, s.cause)
	case o.canceled.Load():
		return fmt.Errorf("batch was stopped: %w", errdefs.ErrCanceled)
	case s.closing && o.started.IsZero():
		return fmt.Errorf("stream closes before the batch has started: %w: %w", errdefs.ErrCanceled, errdefs.ErrClosed)
	}
	return nil
}

// waits reports whether o has to wait: for a dependency, or for what is in flight. A dependency's failure is an error.
func (s *Stream) waits(o *op) (bool, error) {
	for ; o.met < len(o.batch.After); o.met++ {
		d := o.batch.After[o.met]
		select {
		case <-d.Done():
			if err := d.Err(); err != nil {
				return false, fmt.Errorf("dependency %d failed: %w", o.met, err)
			}
		default:
			s.mu.Lock()
			s.unmet = d.Done()
			s.mu.Unlock()
			return true, nil
		}
	}
	if s.outstanding == 0 {
		s.flying = uses{}
	}
	if s.flying.conflicts(&o.uses) {
		return true, nil
	}
	s.flying.add(&o.uses)
	return false, nil
}

// uses is what batches do to memory: read it, and write it by RDMA writes (push) or RDMA reads (fetch).
type uses struct {
	reads, pushed, fetched classes
}

func (u *uses) writes() classes { return u.pushed | u.fetched }

// conflicts reports whether o has to come after u has landed: it reads what u writes, or the other way round, or they write
// the same memory by different opcodes. A queue pair keeps the order of writes by the same one.
func (u *uses) conflicts(o *uses) bool {
	return u.writes()&o.reads != 0 || u.reads&o.writes() != 0 || u.pushed&o.fetched != 0 || u.fetched&o.pushed != 0
}

func (u *uses) add(o *uses) {
	u.reads |= o.reads
	u.pushed |= o.pushed
	u.fetched |= o.fetched
}

// fill builds requests of o until a queue pair has no room. done says that nothing of o is left.
func (s *Stream) fill(o *op) (worked, done bool) {
	c := &o.at
	for {
		if c.n == 0 && !c.next(o.batch, o.needs) {
			return worked, true
		}
		q, n := s.route(c.dst, c.n)
		t := transfer{opcode: c.opcode, n: n}
		keys := o.needs.keys[q.rail.index:]
		dst, src := keys[int(c.dstIndex)*len(s.rails)], keys[int(c.srcIndex)*len(s.rails)]
		if c.opcode == rdma.WRRDMARead {
			t.local, t.lkey, t.remote, t.rkey = c.dst, dst.lkey, c.src, src.rkey
		} else {
			t.local, t.lkey, t.remote, t.rkey = c.src, src.lkey, c.dst, dst.rkey
		}
		if t.remote != q.remoteEnd || !q.extend(&t) {
			if q.full() {
				return worked, false
			}
			q.add(&t)
		}
		worked = true
		c.dst, c.src, c.n = c.dst+uint64(n), c.src+uint64(n), c.n-n
	}
}

// mixer spreads stripes over queue pairs whatever their stride: 2^64 divided by the golden ratio (Knuth, The Art of
// Computer Programming, volume 3, 6.4).
const mixer = 0x9e3779b97f4a7c15

// route returns the queue pair that writes to dst, and how many of n bytes one request may carry there.
func (s *Stream) route(dst uint64, n int64) (*pair, int64) {
	q := s.pairs[0]
	if len(s.pairs) > 1 {
		stripe := dst >> s.stripeShift
		q = s.pairs[(stripe*mixer>>32)*uint64(len(s.pairs))>>32]
		if end := (stripe + 1) << s.stripeShift; end != 0 {
			n = min(n, int64(min(end-dst, math.MaxInt64)))
		}
	}
	return q, min(n, q.rail.requestBytes)
}

// post rings the doorbells for what was built of o. Where a queue pair refuses, the stream breaks, and it returns false.
func (s *Stream) post(o *op) bool {
	ok := true
	for _, q := range s.pairs {
		if q.built == q.Posted() {
			continue
		}
		if s.outstanding == 0 {
			s.heard = time.Now()
		}
		before := q.Posted()
		err := q.post(o)
		s.outstanding += q.Posted() - before
		if err != nil {
			err = fmt.Errorf("batch %d by %s: NIC %s: %w", o.ticket.ID(), s.path, q.rail.reg.Name(), err)
			o.fail(err)
			s.giveUp(o.ticket.ID(), err)
			ok = false
		}
	}
	s.watch()
	return ok
}
