package nic

import (
	"context"
	"fmt"
)

// poke makes the scheduler look.
func (s *Stream) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// work does what there is to do, in up to most passes (negative: without bound), unless somebody else has the turn: he
// looks again then. What is left after that the scheduler does.
func (s *Stream) work(most int) {
	s.again.Store(true)
	for s.again.Load() {
		select {
		case s.turn <- struct{}{}:
		default:
			return
		}
		s.again.Store(false)
		left := s.passes(most)
		<-s.turn
		if left {
			s.poke() // he looks at everything
			return
		}
	}
}

// passes reports whether there is something left that the scheduler has to see to.
func (s *Stream) passes(most int) bool {
	for n := 0; n != most; n++ {
		if !s.pass() && !s.arm() {
			return s.scheduled()
		}
	}
	return s.arm() || s.scheduled() || s.backlogged()
}

// pass does everything once, and reports whether it came further. The caller has the turn.
func (s *Stream) pass() bool {
	worked := s.reap()
	worked = s.issue() || worked
	return s.settle() || worked
}

// scheduled reports whether the scheduler has to do something that others cannot, and may not know of it.
func (s *Stream) scheduled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost && !s.tried && s.outstanding > 0 || s.unmet != nil && s.unmet != s.watched || s.closing && s.head == nil
}

// backlogged reports whether something is left to post.
func (s *Stream) backlogged() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next != nil
}

// arm has the channels tell of the next completion, and reports whether one came before that.
func (s *Stream) arm() bool {
	worked := false
	for _, l := range s.rails {
		if l.armed || l.deaf || l.Outstanding() == 0 {
			continue
		}
		if err := l.CQ.RequestNotify(false); err != nil {
			l.deaf = true
			s.breakDown(fmt.Errorf("NIC %s: %w", l.reg.Name(), err))
			return true
		}
		l.armed = true
		worked = s.reapRail(l) || worked
	}
	return worked
}

// schedule is the scheduler: it does what waits for a dependency, for a time or for the stream's end, and what Submit has
// left over, until the stream is closing and every ticket has resolved.
func (s *Stream) schedule() {
	defer s.quit()
	for {
		s.mu.Lock()
		s.watched = s.unmet
		unmet := s.watched
		over := s.closing && s.head == nil
		s.mu.Unlock()
		if over {
			return
		}
		select {
		case <-s.wake:
		case <-unmet:
		case <-s.watchdog.C:
			s.checkSilence()
		}
		s.heedAlarm()
		s.stopLost()
		s.work(-1) // last: who wanted the turn meanwhile has left without it
	}
}

// listen is the completer of a rail.
func (s *Stream) listen(ctx context.Context, l *rail) {
	for {
		err := l.Wait(ctx)
		if ctx.Err() != nil {
			return
		}
		s.turn <- struct{}{}
		l.armed = false
		if err != nil {
			l.deaf = true
			s.breakDown(fmt.Errorf("NIC %s: %w", l.reg.Name(), err))
		}
		<-s.turn
		s.work(-1)
		if err != nil {
			s.poke()
			return
		}
	}
}
