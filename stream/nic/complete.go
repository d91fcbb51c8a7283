package nic

import (
	"context"
	"fmt"

	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/stream"
)

// reap polls the completion queues. It reports whether there were completions. The caller holds hw.
func (s *Stream) reap() bool {
	if s.outstanding == 0 {
		return false
	}
	worked := false
	for _, l := range s.rails {
		worked = !l.dead && s.reapRail(l) || worked
	}
	return worked
}

// reapRail polls l until its completion queue is empty, because the channel only reports later
// completions. The caller holds hw.
func (s *Stream) reapRail(l *rail) bool {
	for worked := false; ; worked = true {
		n, err := l.CQ.Poll(l.wcs)
		if err != nil {
			s.markDead(l, err)
			return true
		}
		if n == 0 {
			return worked
		}
		for i := range l.wcs[:n] {
			s.handleCompletion(l, &l.wcs[i])
		}
		s.lastCompletion = s.opts.Clock.Now()
		s.completions += uint64(n)
		if len(s.reporting) > 0 {
			s.reportPending.Store(true)
		}
		if n < len(l.wcs) {
			return true
		}
	}
}

// handleCompletion processes one completion of l. The caller holds hw.
func (s *Stream) handleCompletion(l *rail, wc *rdma.WC) {
	index, seq, over := l.Completed(wc)
	if over == 0 {
		return
	}
	q := l.pairs[index]
	if wc.Status != rdma.WCSuccess {
		q.complete(seq, nil) // earlier requests have succeeded
		s.failRequest(q, seq, wc)
	}
	q.complete(seq+1, nil)
	s.outstanding -= over
}

// arm requests a notification of the next completion from each rail with outstanding requests. It
// then polls once more and reports whether there were completions. Rails stay armed while requests
// are outstanding and hw is free. The caller holds hw.
func (s *Stream) arm() bool {
	worked := false
	for _, l := range s.rails {
		if l.armed || l.dead || l.Outstanding() == 0 {
			continue
		}
		if err := l.CQ.RequestNotify(false); err != nil {
			s.markDead(l, err)
			worked = true
			continue
		}
		l.armed = true
		worked = s.reapRail(l) || worked
	}
	return worked
}

// markDead records that l delivers no more completions, and breaks the stream. The caller holds hw.
func (s *Stream) markDead(l *rail, err error) {
	l.dead = true
	s.breakDown(fmt.Errorf("NIC %s: %w", l.reg.Name(), err))
}

// listen waits for completions of a rail until ctx ends or the channel fails.
func (s *Stream) listen(ctx context.Context, l *rail) {
	for {
		err := l.Wait(ctx)
		if ctx.Err() != nil {
			return
		}
		s.hw.Lock()
		l.armed = false
		if err != nil {
			s.markDead(l, err)
		}
		s.reap()
		s.arm()
		s.hw.Unlock()
		s.notify()
		s.life.Issue(-1)
		if err != nil {
			return
		}
	}
}

// pollBytes is the largest batch for which Ticket.Wait polls. Copying it takes about as long as
// waking a goroutine.
const pollBytes = 512 << 10

// Poll implements stream.Driver.
func (o *op) Poll() bool {
	s := o.stream
	if s.hw.TryLock() {
		worked := s.reap()
		s.hw.Unlock()
		if worked {
			s.notify()
			s.life.Issue(1)
		}
	}
	return o.bytes <= pollBytes
}

// Watch implements stream.Driver. It does nothing, because rails are always watched.
func (o *op) Watch() {}

// Finish implements ordered.Work.
func (o *op) Finish(err error) (stream.Completion, error) {
	s := o.stream
	if s.finalFlush(o) {
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
	s.freeManifest(o.manifest)
	// The ticket references o as its driver and may be kept for long, so release the batch.
	o.batch, o.manifest, o.at = nil, nil, cursor{}
	return c, err
}
