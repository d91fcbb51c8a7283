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

// parseSegment reads what segmentName writes. Numbers count from 1.
func parseSegment(name string) (number uint32, ok bool) {
	digits, ok := strings.CutPrefix(name, segmentPrefix)
	if !ok || len(digits) != 16 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 16, 32)
	return uint32(n), err == nil && n > 0 && segmentName(uint32(n)) == name
}

// segment is a file of the log. It is closed when it is no longer in the log and nobody reads it.
type segment struct {
	number uint32
	file   dirfs.File
	refs   atomic.Int32 // of its readers, and of the log

	size    atomic.Int64 // length of the file, or the space reserved for it
	holes   atomic.Int64 // bytes of size that take no disk space: see punch.go
	limit   int64        // where appending ends
	end     atomic.Int64 // of what is written and in the index
	synced  atomic.Int64 // of what is known to be durable
	live    atomic.Int64 // bytes of the blocks that the index has here
	blocks  atomic.Int64 // that the index has here
	ranks   atomic.Int64 // the sum of their ranks
	broken  atomic.Bool  // a sync failed: what is not durable by now may never be
	removed atomic.Bool  // its file was removed by another program
	sealed  atomic.Bool  // nothing is appended any more
	deletes atomic.Bool  // blocks were deleted here that lie in others
	started int64        // of what writeback was started for; the syncer's alone
	unread  bool         // not all of it could be read when the log was opened: it stays as it is

	attaching sync.Mutex
	attached  dirfs.Attached // once it was read so
}

// used returns the bytes of the segment that count toward the bound.
func (s *segment) used() int64 { return s.size.Load() - s.holes.Load() }

// attach readies the file for reads by r. The caller has a reference.
func (s *segment) attach(r dirfs.Reader) (a dirfs.Attached, err error) {
	s.attaching.Lock()
	defer s.attaching.Unlock()
	if s.attached == nil {
		s.attached, err = r.Attach(s.file, segmentName(s.number))
	}
	return s.attached, err
}

// release gives up a reference.
func (s *segment) release() error {
	if s.refs.Add(-1) > 0 {
		return nil
	}
	var err error
	if s.attached != nil { // nobody can attach any more
		err = s.attached.Close()
	}
	return errors.Join(err, s.file.Close())
}

// durable reports whether a block that ends at off is known to be durable, or will be by the
// policy.
func (s *segment) durable(off int64) bool {
	return !s.broken.Load() || off <= s.synced.Load()
}

// errRemoved: another program removed a file or the directory of the log.
var errRemoved = errors.New("it was removed while the log was open")

// checkName returns errRemoved if the segment's file was removed. Its blocks are lost when it is
// closed.
func (s *segment) checkName() error {
	info, err := s.file.Stat()
	if err == nil && info.Links == 0 {
		s.removed.Store(true)
		err = fmt.Errorf("segment %s: %w", segmentName(s.number), errRemoved)
	}
	return err
}

// segments are those of the log, by their numbers.
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

// use returns a segment that the caller releases, or nil where it is not in the log.
func (s *segments) use(number uint32) *segment {
	s.mu.RLock()
	defer s.mu.RUnlock()
	g := s.all[number]
	if g != nil {
		g.refs.Add(1)
	}
	return g
}

// look is use by somebody who does not read the file.
func (s *segments) look(number uint32) *segment {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.all[number]
}

// remove takes a segment out of the log; who reads it reads on.
func (s *segments) remove(g *segment) error {
	s.mu.Lock()
	delete(s.all, g.number)
	s.mu.Unlock()
	return g.release()
}

// list returns the segments in their order.
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
