package copy

import "time"

// Pacing: a choice with a Pace may take no more than its share of the link, so the next step begins no sooner than the
// one before has had its time. Only steps of paced choices wait.

// paced reports whether o's next step has to wait, and has the issuer come back when it need not. The caller holds the mutex.
func (s *Stream) paced(o *op) bool {
	if o.choice.Pace == 0 {
		return false
	}
	wait := s.pacer.Next(s.opts.Clock.Now(), 0)
	if wait > 0 {
		s.pacing.Reset(wait)
	}
	return wait > 0
}

// pace counts a step that began at begun: its share of o's time, by bytes.
func (s *Stream) pace(o *op, it *item, begun time.Time) {
	if o.choice.Pace == 0 {
		return
	}
	share := time.Duration(float64(o.choice.Pace) * float64(it.bytes) / float64(o.stats.bytes))
	s.mu.Lock()
	s.pacer.Next(begun, share)
	s.mu.Unlock()
}
