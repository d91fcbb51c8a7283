package file

import (
	"sync"
	"time"
)

// space counts the blocks of a tier and holds back writes beyond the bound.
type space struct {
	mu         sync.Mutex
	limits            // zero: unbounded
	configured limits // limits, while the disk has room for as much
	fullAt     time.Time
	held       int64 // files, the sum of the buckets' counts
	pending    int64 // files being written
	written    int64 // since the last recount of everything
	stale      bool  // files were found gone that others must have removed
	// freed counts what may have made room: blocks removed or released. wake is closed and replaced when it grows while
	// somebody waits.
	freed   uint64
	waiters int
	wake    chan struct{}
}

// fullFor is for how long a bounded tier keeps to what the disk had room for, once it was full.
const fullFor = 30 * time.Second

// reserve takes the place of one block, or returns a channel that is closed when there may be room, and the number of
// times that there may have been so far. Whoever got the channel calls stopWaiting.
func (s *space) reserve(now time.Time) (ok bool, freed uint64, wake <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.most != s.configured.most && now.Sub(s.fullAt) >= fullFor {
		s.limits = s.configured
	}
	if s.most == 0 || s.held+s.pending < s.most {
		s.pending++
		return true, 0, nil
	}
	if s.wake == nil {
		s.wake = make(chan struct{})
	}
	s.waiters++
	return false, s.freed, s.wake
}

// shrink makes the bound a sixteenth less than what is held, since the disk has no room for more, and says whether there is
// anything to be removed.
func (s *space) shrink(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.configured.most == 0 || s.held == 0 {
		return false
	}
	most := max(1, s.held-max(1, s.held/16))
	s.limits = limits{most: most, high: min(most, s.configured.high), low: min(most-1, s.configured.low)}
	s.fullAt = now
	return true
}

func (s *space) stopWaiting() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiters--
}

// cancel gives back a place that was reserved.
func (s *space) cancel() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending--
	s.mayFit()
}

// begin notes that the caller is about to add a file to b or to take one away; end that it has, and how many more there are
// now. Between the two b cannot be counted.
func (s *space) begin(b *bucket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.changing++
}

func (s *space) end(b *bucket, added int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.changing--
	b.changes++
	if added > 0 {
		s.held++
		b.blocks++
	}
	if added < 0 {
		// The file may have been another process's, and not counted yet.
		if b.blocks > 0 {
			b.blocks--
			s.held--
		}
		s.mayFit()
	}
}

// commit turns a reserved place into a file, which end has counted, and says whether it is time to remove something or to
// recount.
func (s *space) commit() (collect bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending--
	s.written++
	return s.most > 0 && s.held > s.high || s.written >= s.recountAfter()
}

// recountAfter is the number of own writes after which others may have written as much.
func (s *space) recountAfter() int64 { return max(16, max(s.most, s.held)/16) }

// released notes that a pinned block may be removed now.
func (s *space) released() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mayFit()
}

// missing notes that a file was gone that was counted: somebody else removes files too.
func (s *space) missing() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stale = true
}

// counting returns what counted wants to know of the time before b's files were listed.
func (s *space) counting(b *bucket) (changes uint64, quiet bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return b.changes, b.changing == 0
}

// counted notes that b was found to have n files, and says whether that is so: not if files came or went meanwhile.
func (s *space) counted(b *bucket, n int64, changes uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.changing > 0 || b.changes != changes {
		return false
	}
	s.held += n - b.blocks
	if n < b.blocks {
		s.mayFit()
	}
	b.blocks = n
	return true
}

func (s *space) empty(b *bucket) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return b.blocks == 0
}

// countedAll notes that a recount of everything begins.
func (s *space) countedAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written, s.stale = 0, false
}

// due says whether there is something to remove or to recount; recount is sure where others are known to have been at work.
func (s *space) due() (remove, recount, sure bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	remove = s.most > 0 && (s.held > s.high || s.starved())
	return remove, s.written >= s.recountAfter(), s.stale
}

// starving says whether somebody waits for room that there is not.
func (s *space) starving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.starved()
}

func (s *space) starved() bool { return s.most > 0 && s.held+s.pending >= s.most && s.waiters > 0 }

func (s *space) blocks() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held
}

// target is how many blocks a round of removing leaves.
func (s *space) target() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.low
}

func (s *space) waiting() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(s.waiters)
}

func (s *space) mayFit() {
	s.freed++
	if s.waiters > 0 && s.wake != nil {
		close(s.wake)
		s.wake = nil
	}
}
