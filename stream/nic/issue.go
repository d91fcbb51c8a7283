package nic

import (
	"fmt"
	"math"

	"github.com/kvlane/kvlane/rdma"
)

// Issue implements ordered.Work.
func (o *op) Issue() (whole, ok bool) {
	whole, ok = o.stream.issue(o)
	o.stream.notify()
	return whole, ok
}

// issue posts requests of o until a queue pair is full.
func (s *Stream) issue(o *op) (whole, ok bool) {
	s.hw.Lock()
	defer s.hw.Unlock()
	s.reap()
	if o.Started.IsZero() && !s.start(o) {
		return false, s.arm()
	}
	worked, done := s.fill(o)
	whole = s.post(o) && done
	return whole, s.arm() || worked || whole
}

// start starts o. It returns false if o must first wait for batches in flight. The caller holds hw.
func (s *Stream) start(o *op) bool {
	if s.outstanding == 0 {
		s.inFlight = uses{}
	}
	if s.inFlight.conflicts(&o.uses) {
		return false
	}
	s.inFlight.add(&o.uses)
	o.Started = s.opts.Clock.Now()
	s.startReporting(o)
	return true
}

// uses is the memory that batches read, and that they write by RDMA writes (pushed) or by RDMA
// reads (fetched).
type uses struct {
	reads, pushed, fetched classes
}

func (u *uses) writes() classes { return u.pushed | u.fetched }

// conflicts reports whether o must wait until u has completed: one of them reads memory that the
// other writes, or both write the same memory by different opcodes. A queue pair keeps the order of
// writes by one opcode.
func (u *uses) conflicts(o *uses) bool {
	return u.writes()&o.reads != 0 || u.reads&o.writes() != 0 || u.pushed&o.fetched != 0 || u.fetched&o.pushed != 0
}

func (u *uses) add(o *uses) {
	u.reads |= o.reads
	u.pushed |= o.pushed
	u.fetched |= o.fetched
}

// fill builds requests of o until a queue pair is full. It reports whether it has built any, and
// whether all requests of o are built. The caller holds hw.
func (s *Stream) fill(o *op) (worked, done bool) {
	c := &o.at
	for {
		if c.n == 0 {
			more := c.next(o.batch, o.manifest)
			if t := &o.manifest.progress; t.enabled && c.group > t.builtGroups {
				s.markGroups(o)
			}
			if !more {
				return worked, true
			}
		}
		q, n := s.route(c.dst, c.n)
		t := transfer{opcode: c.opcode, n: n}
		keys := o.manifest.keys[q.rail.index:]
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

// mixer spreads stripes evenly over queue pairs for all strides: 2^64 divided by the golden ratio
// (Knuth, The Art of Computer Programming, volume 3, 6.4).
const mixer = 0x9e3779b97f4a7c15

// route returns the queue pair that writes to dst, and the number of bytes, at most n, that one
// request may carry.
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

// post posts the built requests of o. If a queue pair refuses requests, post breaks the stream and
// returns false. The caller holds hw.
func (s *Stream) post(o *op) bool {
	ok := true
	for _, q := range s.pairs {
		if q.built == q.Posted() {
			continue
		}
		if s.outstanding == 0 {
			s.lastCompletion = s.opts.Clock.Now()
		}
		before := q.Posted()
		err := q.post(o)
		s.outstanding += q.Posted() - before
		if err != nil {
			s.failBatch(o, fmt.Errorf("NIC %s: %w", q.rail.reg.Name(), err), false)
			s.giveUp()
			ok = false
		}
	}
	s.watch()
	return ok
}
