package wire

import (
	"sync"
	"sync/atomic"
	"time"
)

// Grace is the idle time after which another connection may replace a connection.
const Grace = time.Second

// Slots are the connections that a server may have at a time. They are safe for concurrent use.
type Slots struct {
	limit int

	mu    sync.Mutex
	taken map[*Slot]struct{}
}

// Slot is the place of one connection.
type Slot struct {
	end   func()
	since atomic.Int64 // Unix nanoseconds at which the connection became idle; 0: it is not idle
}

// NewSlots returns limit slots.
func NewSlots(limit int) *Slots { return &Slots{limit: limit, taken: make(map[*Slot]struct{})} }

// Take returns an idle slot for a connection that end closes. If all slots are taken, it calls end
// of the connection that has been idle for the longest time and takes its slot. It returns nil if
// no connection has been idle for Grace.
func (s *Slots) Take(end func()) *Slot {
	slot := &Slot{end: end}
	slot.Idle()
	var victim *Slot
	s.mu.Lock()
	if len(s.taken) >= s.limit {
		if victim = s.idlest(); victim == nil {
			s.mu.Unlock()
			return nil
		}
		delete(s.taken, victim)
	}
	s.taken[slot] = struct{}{}
	s.mu.Unlock()
	if victim != nil {
		victim.end()
	}
	return slot
}

// idlest returns the slot that has been idle for the longest time, at least Grace, or nil.
func (s *Slots) idlest() (found *Slot) {
	oldest := time.Now().Add(-Grace).UnixNano()
	for slot := range s.taken {
		if since := slot.since.Load(); since != 0 && since <= oldest {
			found, oldest = slot, since
		}
	}
	return found
}

// Release frees a slot. It does nothing if another connection has taken the slot.
func (s *Slots) Release(slot *Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.taken, slot)
}

// Idle notes that the connection waits for a request.
func (s *Slot) Idle() { s.since.Store(time.Now().UnixNano()) }

// Busy notes that the connection has a request. It keeps its slot until it is idle again.
func (s *Slot) Busy() { s.since.Store(0) }
