package file

import "sync"

// space counts the blocks of a tier and holds back writes beyond the bound.
type space struct {
	limits // zero: unbounded

	mu      sync.Mutex
	held    int64 // files, the sum of the buckets' counts
	pending int64 // files being written
	written int64 // since the last recount of everything
	// freed counts what may have made room: blocks removed or released. wake is closed and replaced when it grows while
	// somebody waits.
	freed   uint64
	waiters int
	wake    chan struct{}
}

// reserve takes the place of one block, or returns a channel that is closed when there may be room, and the number of
// times that there may have been so far. Whoever got the channel calls stopWaiting.
func (s *space) reserve() (ok bool, freed uint64, wake <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
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

// commit turns a reserved place into a file of b, and says whether it is time to remove something or to recount.
func (s *space) commit(b *bucket) (collect bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending--
	s.held++
	b.blocks++
	s.written++
	return s.most > 0 && (s.held > s.high || s.written >= s.recountAfter())
}

// recountAfter is the number of own writes after which others may have written as much.
func (s *space) recountAfter() int64 { return max(16, s.most/16) }

// removed notes that a file of b is gone.
func (s *space) removed(b *bucket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// The file may have been another process's, and not counted yet.
	if b.blocks > 0 {
		b.blocks--
		s.held--
	}
	s.mayFit()
}

// released notes that a pinned block may be removed now.
func (s *space) released() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mayFit()
}

// counted notes that b was found to have n files.
func (s *space) counted(b *bucket, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held += n - b.blocks
	if n < b.blocks {
		s.mayFit()
	}
	b.blocks = n
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
	s.written = 0
}

// due says whether there is something to remove or to recount.
func (s *space) due() (remove, recount bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.most == 0 {
		return false, false
	}
	return s.held > s.high || s.held+s.pending >= s.most && s.waiters > 0, s.written >= s.recountAfter()
}

func (s *space) blocks() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held
}

func (s *space) mayFit() {
	s.freed++
	if s.waiters > 0 && s.wake != nil {
		close(s.wake)
		s.wake = nil
	}
}
