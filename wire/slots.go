package wire

import (
	"sync"
	"sync/atomic"
	"time"
)

// Grace is the idle time after which a connection may be replaced by a new one.
const Grace = time.Second

// Slots limits the number of connections of a server. It is safe for concurrent use.
type Slots struct {
	limit int

	mu    sync.Mutex
	taken map[*Slot]struct{}
}

// Slot represents one connection.
type Slot struct {
	end   func()
	since atomic.Int64 // Unix nanoseconds at which the connection became idle; 0 while it is busy
}

// NewSlots returns limit slots.
func NewSlots(limit int) *Slots { return &Slots{limit: limit, taken: make(map[*Slot]struct{})} }

// Take returns an idle slot for a connection that end closes. If all slots are in use, it calls end
// of the connection that has been idle for the longest time and takes over its slot. It returns nil
// if no connection has been idle for Grace.
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

// Release frees a slot. It does nothing if another connection has replaced this one.
func (s *Slots) Release(slot *Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.taken, slot)
}

// Idle records that the connection waits for a request.
func (s *Slot) Idle() { s.since.Store(time.Now().UnixNano()) }

// Busy records that the connection handles a request. It cannot be replaced until it is idle again.
func (s *Slot) Busy() { s.since.Store(0) }
