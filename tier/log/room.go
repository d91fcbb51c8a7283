package log

import (
	"sync"
	"time"
)

// room counts what the segments take of the bound, and holds back further ones beyond it.
type room struct {
	whole      int64 // bytes of a new segment, while the disk has space for it
	least      int64 // bytes of the shortest segment that holds any block
	ahead      int64 // new segments to keep space for, so that writes do not wait for long
	mu         sync.Mutex
	unit       int64 // bytes of a new segment
	most       int64 // zero: unbounded
	configured int64 // most, while the disk has room for as much
	fullAt     time.Time
	used       int64
	waiters    int
	freed      uint64        // counts what may have made room
	wake       chan struct{} // closed and replaced when freed grows while somebody waits
}

// fullFor is for how long a bounded tier keeps to what the disk had room for, once it was full.
const fullFor = 30 * time.Second

// take reserves the space of a new segment and returns its length. The last segment within the
// bound is reserved for moving blocks out of others.
func (r *room) take(now time.Time, mover bool) (bytes int64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.most != r.configured && now.Sub(r.fullAt) >= fullFor {
		r.most, r.unit = r.configured, r.whole
	}
	need := r.unit
	if !mover {
		need += r.unit
	}
	if !r.fits(need) {
		return 0, false
	}
	r.used += r.unit
	return r.unit, true
}

func (r *room) fits(need int64) bool { return r.most == 0 || r.used+need <= r.most }

// add notes that a segment takes so much more, or less, than was taken.
func (r *room) add(bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used += bytes
	if bytes < 0 && r.fits(2*r.unit) {
		r.mayFit()
	}
}

// shrink sets the bound to the space in use, as the disk is full, and the segment length to a
// sixteenth of it. It reports whether emptying segments can free space.
func (r *room) shrink(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.configured == 0 || r.used < leastSegments*r.least {
		return false
	}
	r.most = min(r.used, r.configured)
	r.unit = min(r.whole, max(r.least, r.most/16/page*page))
	r.fullAt = now
	return true
}

// seen returns what has to grow until there may be room that there is not now.
func (r *room) seen() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.freed
}

// released notes that a block may be removed now.
func (r *room) released() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mayFit()
}

func (r *room) mayFit() {
	r.freed++
	if r.waiters > 0 {
		close(r.wake)
		r.wake = make(chan struct{})
	}
}

// wait returns what is closed when there may be room that there was not when seen returned since. Whoever waits calls stopWaiting.
func (r *room) wait(since uint64) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiters++
	if r.freed != since {
		now := make(chan struct{})
		close(now)
		return now
	}
	return r.wake
}

func (r *room) stopWaiting() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiters--
}

func (r *room) waiting() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return int64(r.waiters)
}

// excess is how many bytes are to be removed: for the next segment and for moving, and so that nobody has to wait for long.
func (r *room) excess() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.most == 0 {
		return 0
	}
	high := r.most - max(r.ahead*r.unit, r.most/20)
	if r.used <= high {
		return 0
	}
	return r.used - high
}

func (r *room) holds() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.used
}
