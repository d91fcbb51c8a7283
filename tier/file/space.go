package file

import (
	"sync"
	"time"
)

// space counts blocks and their bytes, and delays writes at the bound.
type space struct {
	unit        int64 // bytes of the longest image
	mu          sync.Mutex
	limits             // zero: unbounded
	configured  limits // limits while the disk is not full
	fullAt      time.Time
	fullErr     error  // error of the write on a full disk, until fullWritten shows that the disk has space
	fullStored  int64  // maximum of storedBytes while the disk was full, since fullErr was set
	fullWritten int64  // bytes written under the configured bound since then
	fulls       uint64 // number of times that shrink lowered the bound
	blocks      int64  // sum of the buckets' counts
	storedBytes int64  // total bytes of the blocks
	peak        int64  // maximum of storedBytes after a write, since takePeak
	pending     int64  // bytes of files being written
	written     int64  // bytes written since the last recount of everything
	recordStep  int64  // growth of storedBytes after which the usage record is renewed; zero: never
	recorded    int64  // storedBytes in the usage record
	grown       bool   // storedBytes has grown by recordStep since the record
	stale       bool   // another process has removed files
	anyLost     bool   // a bucket is lost
	// freed counts events that may have freed space: blocks removed or released. wake is closed and
	// replaced at such an event if there are waiters.
	freed   uint64
	waiters int
	wake    chan struct{}
}

// fullFor is the time for which a full disk lowers the bound.
const fullFor = 30 * time.Second

// reserve reserves the bytes of a block. If there is no space, it returns a channel that is closed
// at the next event that may free space, and the number of such events so far. The caller must then
// call stopWaiting.
func (s *space) reserve(now time.Time, bytes int64) (ok bool, freed uint64, wake <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.most != s.configured.most && now.Sub(s.fullAt) >= fullFor {
		s.limits = s.configured
	}
	if s.most == 0 || s.storedBytes+s.pending+bytes <= s.most {
		s.pending += bytes
		return true, 0, nil
	}
	if s.wake == nil {
		s.wake = make(chan struct{})
	}
	s.waiters++
	return false, s.freed, s.wake
}

// shrink sets the bound to a sixteenth less than storedBytes, because a write failed with cause on
// a full disk. fulls is the result of timesFull before that write. shrink reports whether to write
// again. It returns false if nothing is stored, or if less is stored than when the disk was full
// before: other programs have then taken the freed space, and would take more.
func (s *space) shrink(now time.Time, fulls uint64, cause error) (next bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.configured.most == 0 || s.storedBytes == 0 {
		return false
	}
	if s.fulls != fulls { // another write has already lowered the bound
		return true
	}
	if s.fullWritten = 0; s.fullErr != nil && s.storedBytes < s.fullStored-s.sixteenth(s.fullStored, 1) {
		return false
	}
	s.fulls++
	s.fullErr, s.fullStored = cause, max(s.fullStored, s.storedBytes)
	most := max(s.unit, s.storedBytes-s.sixteenth(s.storedBytes, 1))
	s.limits = limits{most: most, high: min(most, s.configured.high), low: min(most-s.unit, s.configured.low)}
	s.fullAt = now
	return true
}

// timesFull returns the number of times that a full disk lowered the bound.
func (s *space) timesFull() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fulls
}

// full returns the error of the last write on a full disk, or nil if the disk has space up to the
// bound.
func (s *space) full() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fullErr
}

// setLimits sets this tier's share of the shared bound.
func (s *space) setLimits(l limits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	full, grows := s.most != s.configured.most, l.most > s.configured.most
	s.configured = l
	if full { // keep the lower bound of a full disk
		l = limits{most: min(l.most, s.most), high: min(l.high, s.high), low: min(l.low, s.low)}
	}
	if s.limits = l; grows {
		s.notifyFreed()
	}
}

// sixteenth returns a sixteenth of bytes in whole images, but at least least images.
func (s *space) sixteenth(bytes, least int64) int64 { return max(least, bytes/s.unit/16) * s.unit }

func (s *space) stopWaiting() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiters--
}

// cancel releases reserved bytes.
func (s *space) cancel(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending -= bytes
	s.notifyFreed()
}

// beginChange must be called before adding a file to b or removing one, and endChange after it.
// endChange updates the count. Between the two calls, setCount on b fails.
func (s *space) beginChange(b *bucket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.changing++
}

func (s *space) endChange(b *bucket, added, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.changing--
	b.changes++
	if added > 0 {
		s.add(b, 1, bytes)
		s.peak = max(s.peak, s.storedBytes)
	}
	if added < 0 {
		// The file may belong to another process and may not be counted yet.
		if b.blocks > 0 && b.bytes >= bytes {
			s.add(b, -1, -bytes)
		}
		s.notifyFreed()
	}
}

func (s *space) add(b *bucket, blocks, bytes int64) {
	b.blocks += blocks
	b.bytes += bytes
	s.blocks += blocks
	s.storedBytes += bytes
}

// commit converts reserved bytes into those of a file that endChange has counted. It reports
// whether the collector must be woken.
func (s *space) commit(bytes int64) (collect bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending -= bytes
	s.written += bytes
	if s.fullErr != nil && s.most == s.configured.most {
		// twice as much as was freed because of the full disk
		if s.fullWritten += bytes; s.fullWritten > 2*s.sixteenth(s.fullStored, 1) {
			s.fullErr, s.fullStored = nil, 0
		}
	}
	grows := !s.grown && s.recordStep > 0 && s.storedBytes-s.recorded >= s.recordStep
	s.grown = s.grown || grows
	return grows || s.most > 0 && s.storedBytes > s.high || s.written >= s.recountAfter()
}

// recountAfter returns the number of bytes that this process writes between recounts. Other
// processes may have written as much meanwhile.
func (s *space) recountAfter() int64 { return s.sixteenth(max(s.most, s.storedBytes), 16) }

// notifyReleased wakes waiting writes, because a block may have become evictable.
func (s *space) notifyReleased() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notifyFreed()
}

// markStale records that a counted file was missing, so that other processes must be removing
// files.
func (s *space) markStale() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stale = true
}

// markLost records that a file counted in b was missing.
func (s *space) markLost(b *bucket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.lost, s.anyLost = true, true
}

// takeLost reports whether b must be counted again, and resets the mark.
func (s *space) takeLost(b *bucket) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	lost := b.lost
	b.lost = false
	return lost
}

// takeAnyLost reports whether any bucket must be counted again, and resets the mark.
func (s *space) takeAnyLost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	lost := s.anyLost
	s.anyLost = false
	return lost
}

// beginCount returns the state of b for setCount. Call it before listing the files of b.
func (s *space) beginCount(b *bucket) (changes uint64, stable bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return b.changes, b.changing == 0
}

// setCount sets the count of b. It returns false if files of b have changed since beginCount.
func (s *space) setCount(b *bucket, blocks, bytes int64, changes uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.changing > 0 || b.changes != changes {
		return false
	}
	less := bytes < b.bytes
	s.add(b, blocks-b.blocks, bytes-b.bytes)
	if less {
		s.notifyFreed()
	}
	return true
}

func (s *space) empty(b *bucket) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return b.blocks == 0
}

// beginRecount records that all files will be counted.
func (s *space) beginRecount() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written, s.stale = 0, false
}

// due reports whether blocks must be evicted, and whether they must be recounted. sure is set if
// other processes have certainly removed files.
func (s *space) due() (remove, recount, sure bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	remove = s.most > 0 && (s.storedBytes > s.high || s.hasWaitersLocked())
	return remove, s.written >= s.recountAfter(), s.stale
}

// hasWaiters reports whether a write is blocked on space.
func (s *space) hasWaiters() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hasWaitersLocked()
}

func (s *space) hasWaitersLocked() bool {
	return s.most > 0 && s.storedBytes+s.pending+s.unit > s.most && s.waiters > 0
}

// stored returns the number of blocks and their bytes.
func (s *space) stored() (blocks, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.blocks, s.storedBytes
}

// storedIn returns the number of blocks of one directory, and their bytes.
func (s *space) storedIn(d *dir) (blocks, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range d.buckets {
		blocks += d.buckets[i].blocks
		bytes += d.buckets[i].bytes
	}
	return blocks, bytes
}

// demand returns the stored and pending bytes, plus those of one block if writes wait for space.
func (s *space) demand() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiters > 0 {
		return s.storedBytes + s.pending + s.unit
	}
	return s.storedBytes + s.pending
}

// takePeak returns the difference between peak and storedBytes, and starts a new peak. Call it
// before storedBytes is written to the usage record.
func (s *space) takePeak() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	below := max(0, s.peak-s.storedBytes)
	s.peak, s.recorded, s.grown = 0, s.storedBytes, false
	return below
}

// hasGrown reports whether storedBytes has grown by recordStep since the usage record was written.
func (s *space) hasGrown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.grown
}

// target returns the number of bytes that a round leaves.
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

func (s *space) notifyFreed() {
	s.freed++
	if s.waiters > 0 && s.wake != nil {
		close(s.wake)
		s.wake = nil
	}
}
