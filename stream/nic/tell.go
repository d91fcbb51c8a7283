package nic

import (
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/rdma"
)

// tellBytes is how many bytes of page groups are worth a completion of their own, and a flush: they take about as long as
// waking up whoever is told.
const tellBytes = 256 << 10

// tale is what there is to tell of a batch's page groups, but for the last, of which its ticket tells. Guarded by Stream.hw.
type tale struct {
	on    bool
	built int      // groups whose requests are built
	ends  []uint64 // by such a group and queue pair: up to where these requests are
	quiet int64    // bytes of groups that were built since a completion was asked for
	told  int      // groups
}

// beginTale has page groups of o told of, if somebody wants to know. o begins.
func (s *Stream) beginTale(o *op) {
	if p := o.batch.Paged; p != nil && p.Landed != nil && len(p.Groups) > 1 {
		o.needs.tale.on = true
		s.tellers = append(s.tellers, o)
	}
}

// mark notes where the requests of page groups end that were built, and asks for completions there.
func (s *Stream) mark(o *op) {
	m, t, groups := o.needs, &o.needs.tale, o.batch.Paged.Groups
	for ; t.built < o.at.group; t.built++ {
		if t.built == len(groups)-1 {
			continue
		}
		first := 0
		if t.built > 0 {
			first = m.groups[t.built-1]
		}
		for i := first; i < m.groups[t.built]; i++ {
			t.quiet += m.planes[i].n * int64(len(groups[t.built].Pairs))
		}
		for _, q := range s.pairs {
			t.ends = append(t.ends, q.built)
		}
	}
	if t.quiet < tellBytes {
		return
	}
	t.quiet = 0
	for _, q := range s.pairs {
		if q.built != q.Posted() {
			q.wrs[(q.built-1)&q.mask].Flags = rdma.SendSignaled
		}
	}
	s.news.Store(true) // where all have been posted they may have completed
}

// landed returns how many of o's page groups have landed.
func (s *Stream) landed(o *op) int {
	t := &o.needs.tale
	for n := t.told; ; n++ {
		ends := t.ends[n*len(s.pairs):]
		if len(ends) == 0 {
			return n
		}
		for i, q := range s.pairs {
			if q.ended < ends[i] {
				return n
			}
		}
	}
}

// tell tells what has landed, unless somebody does, who then looks again. It follows whatever takes completions off, without hw.
func (s *Stream) tell() {
	for s.news.Load() && s.sight.TryLock() {
		s.news.Store(false)
		for o, n, at := s.untold(); o != nil; o, n, at = s.untold() {
			if s.flush(o, at) {
				o.batch.Paged.Landed(n, false)
			}
		}
		s.sight.Unlock()
	}
}

// untold returns the oldest batch of which there is something to tell, as told: how many groups, of how many completions.
func (s *Stream) untold() (o *op, groups int, at uint64) {
	s.hw.Lock()
	defer s.hw.Unlock()
	for _, o := range s.tellers {
		if n := s.landed(o); n > o.needs.tale.told {
			o.needs.tale.told = n
			return o, n, s.completions
		}
	}
	return nil, 0, 0
}

// hush has nothing more told of o, but what somebody is about to tell. The caller holds hw.
func (s *Stream) hush(o *op) {
	if i := slices.Index(s.tellers, o); i >= 0 {
		s.tellers = slices.Delete(s.tellers, i, i+1)
	}
}

// conclude has nothing more told of o, which has landed, and makes what it wrote visible. It reports whether o may have failed
// by that.
func (s *Stream) conclude(o *op) bool {
	if o.Started.IsZero() || s.opts.Flush == nil && !o.needs.tale.on {
		return false
	}
	s.sight.Lock()
	s.hw.Lock()
	s.hush(o)
	at := s.completions
	s.hw.Unlock()
	s.flush(o, at)
	s.sight.Unlock()
	s.tell() // what came meanwhile
	return true
}

// flush makes what o wrote to devices visible there, as far as it had landed when so many completions were taken, and reports
// whether it is. The caller holds sight.
func (s *Stream) flush(o *op, at uint64) bool {
	if s.opts.Flush == nil {
		return true
	}
	if at != s.visibleAt {
		s.visible, s.visibleAt = 0, at
	}
	for d := range maxDevice + 1 {
		if bit := classes(1) << d; o.uses.writes()&bit&^s.visible != 0 {
			if err := s.opts.Flush(d); err != nil {
				s.hw.Lock()
				defer s.hw.Unlock()
				s.failBatch(o, fmt.Errorf("flush writes to device %d: %w", d, err), false)
				return false
			}
			s.visible |= bit
		}
	}
	return true
}
