package guard

import (
	"sync"
	"sync/atomic"
	"time"
)

// Grace is how long a connection must have been idle before it gives way to another.
const Grace = time.Second

// Slots are the connections that a server may have at a time. Safe for concurrent use.
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

// Take returns a slot, which is idle, for a connection that end closes. If all are taken, it ends the connection that has been idle for the
// longest and gives its slot away. It returns nil if none has been idle for Grace.
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

// idlest returns the slot that has been idle for the longest, at least for Grace, or nil.
func (s *Slots) idlest() (found *Slot) {
	oldest := time.Now().Add(-Grace).UnixNano()
	for slot := range s.taken {
		if since := slot.since.Load(); since != 0 && since <= oldest {
			found, oldest = slot, since
		}
	}
	return found
}

// Release gives a slot back. It does nothing if the slot was given to another connection.
func (s *Slots) Release(slot *Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.taken, slot)
}

// Idle notes that the connection waits for a request.
func (s *Slot) Idle() { s.since.Store(time.Now().UnixNano()) }

// Busy notes that the connection has a request. It keeps its slot until it is idle again.
func (s *Slot) Busy() { s.since.Store(0) }
