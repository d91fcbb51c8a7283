package nic

import (
	"context"
	"fmt"

	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/stream"
)

// reap takes completions off, with hw held, and reports whether there were any.
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

// reapRail leaves nothing in l's completion queue: of what it left, no channel would tell.
func (s *Stream) reapRail(l *rail) bool {
	for worked := false; ; worked = true {
		n, err := l.CQ.Poll(l.wcs)
		if err != nil {
			s.deafen(l, err)
			return true
		}
		if n == 0 {
			return worked
		}
		for i := range l.wcs[:n] {
			s.completed(l, &l.wcs[i])
		}
		s.heard = s.opts.Clock.Now()
		s.completions += uint64(n)
		if len(s.tellers) > 0 {
			s.news.Store(true)
		}
		if n < len(l.wcs) {
			return true
		}
	}
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

// arm has the channels tell of the next completion, and reports whether one came before that. While anything is outstanding
// and hw is free, they are armed.
func (s *Stream) arm() bool {
	worked := false
	for _, l := range s.rails {
		if l.armed || l.deaf || l.Outstanding() == 0 {
			continue
		}
		if err := l.CQ.RequestNotify(false); err != nil {
			s.deafen(l, err)
			worked = true
			continue
		}
		l.armed = true
		worked = s.reapRail(l) || worked
	}
	return worked
}

// deafen says that l's completions do not come any more.
func (s *Stream) deafen(l *rail, err error) {
	l.deaf = true
	s.breakDown(fmt.Errorf("NIC %s: %w", l.reg.Name(), err))
}

// listen is the completer of a rail.
func (s *Stream) listen(ctx context.Context, l *rail) {
	for {
		err := l.Wait(ctx)
		if ctx.Err() != nil {
			return
		}
		s.hw.Lock()
		l.armed = false
		if err != nil {
			s.deafen(l, err)
		}
		s.reap()
		s.arm()
		s.hw.Unlock()
		s.tell()
		s.life.Issue(-1)
		if err != nil {
			return
		}
	}
}

// pollBytes is how large a batch may be for whoever waits for it to poll: it takes about as long as being woken up.
const pollBytes = 512 << 10

// Poll implements stream.Driver.
func (o *op) Poll() bool {
	s := o.stream
	if s.hw.TryLock() {
		worked := s.reap()
		s.hw.Unlock()
		if worked {
			s.tell()
			s.life.Issue(1)
		}
	}
	return o.bytes <= pollBytes
}

// Watch implements stream.Driver. Completers watch in any case.
func (o *op) Watch() {}

// Finish implements ordered.Work.
func (o *op) Finish(err error) (stream.Completion, error) {
	s := o.stream
	if s.conclude(o) {
		err = o.Verdict()
	}
	c := stream.Completion{Path: s.path, Reason: ReasonLoopback, Started: o.Started, Finished: s.opts.Clock.Now()}
	switch {
	case o.Started.IsZero():
		c.Path, c.Reason, c.Started = stream.PathNone, ReasonUnstarted, c.Finished
	case o.bytes == 0:
		c.Path, c.Reason = stream.PathNone, ReasonEmpty
	}
	if err == nil {
		c.Bytes, c.Pieces = o.bytes, o.pieces
	}
	s.giveBack(o.needs)
	// The ticket may be kept for long, and leads here as its driver: let the batch go.
	o.batch, o.needs, o.at = nil, nil, cursor{}
	return c, err
}
