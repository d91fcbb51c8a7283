package nic

import (
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/rdma"
)

// notifyBytes is the number of bytes of page groups after which a signaled completion and a device
// flush are worth their cost. Copying them takes about as long as waking the goroutine that handles
// the report.
const notifyBytes = 256 << 10

// progress tracks the page groups of a batch. Stream.hw guards it.
type progress struct {
	enabled         bool
	builtGroups     int      // groups whose requests are built
	ends            []uint64 // end position of each built group on each queue pair
	unsignaledBytes int64    // bytes built since the last signaled completion
	reported        int      // groups passed to mem.Paged.Completed
}

// startReporting adds o to s.reporting if its batch has a Completed callback and more than one page
// group. A single group needs no report because its ticket resolves at the same time. The caller
// holds hw.
func (s *Stream) startReporting(o *op) {
	paged := o.batch.Paged
	if paged == nil || paged.Completed == nil || len(paged.Groups) < 2 {
		return
	}
	o.manifest.progress.enabled = true
	s.reporting = append(s.reporting, o)
}

// markGroups records the end positions of o's newly built page groups. After notifyBytes it
// requests a completion for the last request of every queue pair. The caller holds hw.
func (s *Stream) markGroups(o *op) {
	m, p, groups := o.manifest, &o.manifest.progress, o.batch.Paged.Groups
	for ; p.builtGroups < o.at.group; p.builtGroups++ {
		first := 0
		if p.builtGroups > 0 {
			first = m.groups[p.builtGroups-1]
		}
		for i := first; i < m.groups[p.builtGroups]; i++ {
			p.unsignaledBytes += m.planes[i].n * int64(len(groups[p.builtGroups].Pairs))
		}
		for _, q := range s.pairs {
			p.ends = append(p.ends, q.built)
		}
	}
	if p.unsignaledBytes < notifyBytes {
		return
	}
	p.unsignaledBytes = 0
	for _, q := range s.pairs {
		if q.built != q.Posted() {
			q.wrs[(q.built-1)&q.mask].Flags = rdma.SendSignaled
		}
	}
	// Requests that were posted before their end positions were recorded may already have
	// completed.
	s.reportPending.Store(true)
}

// completedGroups returns the number of o's page groups whose requests have completed on every
// queue pair. The caller holds hw.
func (s *Stream) completedGroups(o *op) int {
	p := &o.manifest.progress
	for n := p.reported; n < p.builtGroups; n++ {
		ends := p.ends[n*len(s.pairs):]
		for i, q := range s.pairs {
			if q.ended < ends[i] {
				return n
			}
		}
	}
	return p.builtGroups
}

// notify reports completed page groups through mem.Paged.Completed. If another goroutine is
// reporting, notify returns and that goroutine checks again. Call it without hw, after polling
// completions.
func (s *Stream) notify() {
	for s.reportPending.Load() && s.reportMu.TryLock() {
		s.reportPending.Store(false)
		for {
			o, groups, at := s.nextReport()
			if o == nil {
				break
			}
			if s.flushDevices(o, at) {
				o.batch.Paged.Completed(groups, false)
			}
		}
		s.reportMu.Unlock()
	}
}

// nextReport returns the oldest batch with unreported groups, the number of its completed groups
// and the value of s.completions. It marks these groups as reported. It returns nil if there is no
// such batch. The ticket of a batch reports its last group.
func (s *Stream) nextReport() (o *op, groups int, at uint64) {
	s.hw.Lock()
	defer s.hw.Unlock()
	for _, o := range s.reporting {
		p, n := &o.manifest.progress, s.completedGroups(o)
		if n > p.reported && n < len(o.batch.Paged.Groups) {
			p.reported = n
			return o, n, s.completions
		}
	}
	return nil, 0, 0
}

// stopReporting removes o from s.reporting. A report that is already in progress may still arrive.
// The caller holds hw.
func (s *Stream) stopReporting(o *op) {
	if i := slices.Index(s.reporting, o); i >= 0 {
		s.reporting = slices.Delete(s.reporting, i, i+1)
	}
}

// finalFlush stops the reports of o, whose requests have completed, and flushes its device writes.
// It waits for a report in progress. It returns true if the caller must read o.Verdict again,
// because a failed flush fails o.
func (s *Stream) finalFlush(o *op) bool {
	if o.Started.IsZero() || s.opts.Flush == nil && !o.manifest.progress.enabled {
		return false
	}
	s.reportMu.Lock()
	s.hw.Lock()
	s.stopReporting(o)
	at := s.completions
	s.hw.Unlock()
	s.flushDevices(o, at)
	s.reportMu.Unlock()
	s.notify() // while reportMu was held, other goroutines skipped their reports
	return true
}

// flushDevices makes o's writes visible on the devices, up to completion number at. It skips
// devices that were flushed after that completion. If a flush fails, flushDevices fails o, breaks
// the stream and returns false. The caller holds reportMu.
func (s *Stream) flushDevices(o *op, at uint64) bool {
	if s.opts.Flush == nil {
		return true
	}
	if at != s.visibleAt {
		s.visible, s.visibleAt = 0, at
	}
	for d := range maxDevice + 1 {
		if bit := classes(1) << d; o.uses.writes()&bit&^s.visible != 0 {
			if err := s.opts.Flush(d); err != nil {
				s.hw.Lock()
				defer s.hw.Unlock()
				s.failBatch(o, fmt.Errorf("flush writes to device %d: %w", d, err), false)
				return false
			}
			s.visible |= bit
		}
	}
	return true
}
