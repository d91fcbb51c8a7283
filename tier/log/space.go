package log

import (
	"sync"
	"time"

	"github.com/kvlane/kvlane/tier"
)

// space counts the bytes of the segments, and refuses new segments beyond the bound.
type space struct {
	whole      int64 // configured length of a new segment in bytes
	least      int64 // length of a segment that fits the longest block
	ahead      int64 // number of new segments for which space is kept free
	mu         sync.Mutex
	unit       int64 // current length of a new segment in bytes
	most       int64 // bound in bytes; zero if unbounded
	configured int64 // most when the disk is not full
	fullAt     time.Time
	used       int64
	waiters    int
	demand     chan struct{} // closed while writes wait
	freed      uint64        // number of events that may have freed space
	wake       chan struct{} // closed and replaced at such an event if there are waiters
}

// fullFor is the time for which a full disk lowers the bound.
const fullFor = 30 * time.Second

// reserve reserves the space of a new segment and returns its length. Only a mover may use the last
// segment within the bound, to move blocks out of other segments.
func (s *space) reserve(now time.Time, mover bool) (bytes int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.most != s.configured && now.Sub(s.fullAt) >= fullFor {
		s.most, s.unit = s.configured, s.whole
	}
	need := s.unit
	if !mover {
		need += s.unit
	}
	if !s.fits(need) {
		return 0, false
	}
	s.used += s.unit
	return s.unit, true
}

func (s *space) fits(need int64) bool { return s.most == 0 || s.used+need <= s.most }

// add changes the space in use by this number of bytes.
func (s *space) add(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used += bytes
	if bytes < 0 && s.fits(2*s.unit) {
		s.notifyFreed()
	}
}

// shrink sets the bound to the space in use, because the disk is full, and the segment length to a
// sixteenth of it. It reports whether emptying segments can free space.
func (s *space) shrink(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.configured == 0 || s.used < leastSegments*s.least {
		return false
	}
	s.most = min(s.used, s.configured)
	s.unit = min(s.whole, max(s.least, s.most/16/page*page))
	s.fullAt = now
	return true
}

// freedCount returns the number of events so far that may have freed space.
func (s *space) freedCount() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.freed
}

// notifyReleased wakes waiting writes, because a block may have become evictable.
func (s *space) notifyReleased() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notifyFreed()
}

func (s *space) notifyFreed() {
	s.freed++
	if s.waiters > 0 {
		close(s.wake)
		s.wake = make(chan struct{})
	}
}

// wait returns a channel that is closed at the next event that may free space. It is already closed
// if such an event has happened since freedCount returned since. The caller must call stopWaiting.
func (s *space) wait(since uint64) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiters++; s.waiters == 1 {
		close(s.demand)
	}
	if s.freed != since {
		now := make(chan struct{})
		close(now)
		return now
	}
	return s.wake
}

func (s *space) stopWaiting() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiters--; s.waiters == 0 {
		s.demand = make(chan struct{})
	}
}

// demanded returns a channel that is closed while a write waits for space.
func (s *space) demanded() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.demand
}

func (s *space) waiting() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(s.waiters)
}

// excess returns the number of bytes to free, so that there is space for moves and for the next
// segments.
func (s *space) excess() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.most == 0 {
		return 0
	}
	high := s.most - max(s.ahead*s.unit, s.most/20)
	if s.used <= high {
		return 0
	}
	return s.used - high
}

func (s *space) usedBytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// cause returns the cause of evictions while excess is positive.
func (s *space) cause() tier.Cause {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.most != s.configured {
		return tier.CauseFull
	}
	return tier.CauseBound
}
