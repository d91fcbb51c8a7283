package blockhost

import (
	"errors"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

// reportEvery is the least time between two reports of a tenant's disk.
const reportEvery = time.Minute

// DiskReport has the events of a tenant's disk since the previous report.
type DiskReport struct {
	Tenant string
	Failed int64 // writes of blocks
	Err    error // of the last of them; nil: none
	// Evicted are blocks that were removed because of the bound or because the disk is full. Full is
	// the error of a full disk, on which new blocks replace old ones, or nil.
	Evicted int64
	Full    error
}

// diskEvents are the events of a tenant's disk that were not reported. The host's mutex guards
// them.
type diskEvents struct {
	DiskReport
	next    time.Time // of the next report
	evicted int64     // in the last report, since the start
}

// noteWrite notes the end of a write to disk, and reports the tenant's disk if that is due. The
// caller does not hold mu.
func (s *Space) noteWrite(err error, now time.Time) {
	h, ev := s.h, &s.t.events
	var full error
	if st, ok := s.disk.(tier.Statter); ok {
		full = st.Stats().Paused
	}
	h.mu.Lock()
	switch {
	case errors.Is(err, errdefs.ErrNoSpace):
		s.t.usage.DiskFull++
		full = errors.Join(err, full)
	case full != nil && err == nil:
		s.t.usage.DiskFull++
	}
	if err != nil {
		ev.Failed, ev.Err = ev.Failed+1, err
	}
	if full != nil {
		ev.Full = full
	}
	due := h.o.Disk.Report != nil && !now.Before(ev.next)
	if due {
		ev.next = now.Add(time.Second) // for the figures of all tiers
	}
	h.mu.Unlock()
	if !due {
		return
	}
	evicted := h.Usage(s.t.name).DiskEvictions
	h.mu.Lock()
	r := ev.DiskReport
	r.Tenant, r.Evicted = s.t.name, evicted-ev.evicted
	due = r.Failed > 0 || r.Evicted > 0 || r.Full != nil
	if due {
		*ev = diskEvents{next: now.Add(reportEvery), evicted: evicted}
	}
	h.mu.Unlock()
	if due {
		h.o.Disk.Report(r)
	}
}

// addDisks adds the figures of the tiers to u.
func (u *Usage) addDisks(disks []tier.Tier) {
	for _, d := range disks {
		if s, ok := d.(tier.Statter); ok {
			st := s.Stats()
			u.DiskBlocks, u.DiskBytes = u.DiskBlocks+st.Blocks, u.DiskBytes+st.Bytes
			u.DiskEvictions += st.Evictions + st.Reclaimed
		}
	}
}
