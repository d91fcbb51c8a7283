package copy

import "time"

// Pacing: a choice with a Pace may take no more than its share of the link, so the next step begins no sooner than the
// one before has had its time. Only steps of paced choices wait.

// paced reports whether o's next step has to wait. The caller holds the mutex.
func (s *Stream) paced(o *op) bool {
	return o.choice.Pace > 0 && s.pacer.Next(time.Now(), 0) > 0
}

// pause returns how long the head of the backlog has to wait. ok is false where it does not, or not for its pace.
func (s *Stream) pause() (wait time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.issuing || s.head == nil || s.head.choice.Pace == 0 {
		return 0, false
	}
	wait = s.pacer.Next(time.Now(), 0)
	return wait, wait > 0
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
