package log

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kvlane/kvlane/internal/dirfs"
)

const segmentPrefix = "seg-"

func segmentName(number uint32) string { return fmt.Sprintf("%s%016x", segmentPrefix, number) }

// parseSegment parses a name returned by segmentName. Numbers start at 1.
func parseSegment(name string) (number uint32, ok bool) {
	digits, ok := strings.CutPrefix(name, segmentPrefix)
	if !ok || len(digits) != 16 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 16, 32)
	return uint32(n), err == nil && n > 0 && segmentName(uint32(n)) == name
}

// segment is a file of the log. It is closed when it has been removed from the log and has no
// readers.
type segment struct {
	number uint32
	file   dirfs.File
	refs   atomic.Int32 // one for the log and one for each reader

	size   atomic.Int64 // length of the file, or the space reserved for it
	holes  atomic.Int64 // bytes of size that use no disk space: see punch.go
	limit  int64        // end of the space for appending
	end    atomic.Int64 // end of the written groups that are in the index
	synced atomic.Int64 // end of the durable bytes
	live   atomic.Int64 // bytes of the blocks that the index locates in this segment
	blocks atomic.Int64 // number of these blocks
	ranks  atomic.Int64 // sum of the ranks of these blocks
	// broken is the error of a failed sync: bytes after synced may never become durable.
	broken  atomic.Pointer[error]
	removed atomic.Bool  // another program has removed the file
	sealed  atomic.Bool  // no more appends
	deletes atomic.Int64 // bytes of the headers with deletions, as far as they were written or read since opening
	started int64        // end of the bytes whose writeback was started; only the syncer uses it
	unread  bool         // part of the file was unreadable when the log was opened; the file stays unchanged
}

// used returns the bytes of the segment that count toward the bound.
func (s *segment) used() int64 { return s.size.Load() - s.holes.Load() }

// release drops a reference.
func (s *segment) release() error {
	if s.refs.Add(-1) > 0 {
		return nil
	}
	return s.file.Close()
}

// durable reports whether a block that ends at off is durable, or will be under the policy.
func (s *segment) durable(off int64) bool {
	return s.broken.Load() == nil || off <= s.synced.Load()
}

// errRemoved is returned if another program has removed a file or the directory of the log.
var errRemoved = errors.New("it was removed while the log was open")

// checkName returns errRemoved if the segment's file was removed. Its blocks are then lost when the
// file is closed.
func (s *segment) checkName() error {
	info, err := s.file.Stat()
	if err == nil && info.Links == 0 {
		s.removed.Store(true)
		err = fmt.Errorf("segment %s: %w", segmentName(s.number), errRemoved)
	}
	return err
}

// segments is the set of segments by number.
type segments struct {
	mu  sync.RWMutex
	all map[uint32]*segment
}

func (s *segments) add(g *segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g.refs.Add(1)
	s.all[g.number] = g
}

// acquire returns a segment with a reference, or nil if it is not in the log. The caller must call
// release.
func (s *segments) acquire(number uint32) *segment {
	s.mu.RLock()
	defer s.mu.RUnlock()
	g := s.all[number]
	if g != nil {
		g.refs.Add(1)
	}
	return g
}

// get returns a segment without a reference. The caller must not read its file.
func (s *segments) get(number uint32) *segment {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.all[number]
}

// remove removes a segment from the log. Running reads continue.
func (s *segments) remove(g *segment) error {
	s.mu.Lock()
	delete(s.all, g.number)
	s.mu.Unlock()
	return g.release()
}

// list returns the segments in the order of their numbers.
func (s *segments) list() []*segment {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make([]*segment, 0, len(s.all))
	for _, g := range s.all {
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b *segment) int { return cmp.Compare(a.number, b.number) })
	return all
}
