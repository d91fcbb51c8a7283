package file

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"time"

	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// A tier with Config.SharedBound shares its bound with the other folders in the parents of its
// directories. Its collector reads their usage records and removes blocks of folders that no
// process has open. It limits this tier's folders to the bytes that live folders leave, or to a
// share in proportion to its bytes.

// answerTimeout is the time that a tier waits for other tiers to renew their records before it sets
// its share again.
const answerTimeout = 2 * recountEvery

// shared reports whether other folders count toward the area's bound.
func (a *area) shared() bool { return a.cfg.SharedBound && a.bound > 0 && !a.cfg.ReadOnly }

// share reads the sizes of the other folders and sets the bounds of this tier's folders. If all
// folders together are above the high watermark, it first removes blocks of folders that no process
// has open. retry is set if another process is removing blocks or opening a folder.
func (a *area) share(ctx context.Context) (retry bool, err error) {
	err = a.readNeighbours(ctx)
	total, tried := a.total(), false
	for !tried && a.anyUnknown() || total > a.whole.high {
		tried = true
		before := a.count.reclaimed.Load()
		err = errors.Join(err, a.reclaim(ctx))
		total = a.total()
		// If blocks were removed, check again: other blocks may have been written meanwhile.
		if a.count.reclaimed.Load() == before {
			break
		}
	}
	for _, n := range a.neighbours {
		if !tried {
			n.busySince = time.Time{}
		}
		retry = retry || n.busy()
	}
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	a.others.Store(a.neighbourPeaks())
	if !retry || total <= a.whole.high {
		a.setShare(total)
	}
	return retry, err
}

// readNeighbours reads the records of the other folders.
func (a *area) readNeighbours(ctx context.Context) error {
	now, found := a.clock.Now(), make(map[string]*neighbour)
	var errs []error
	for _, d := range a.dirs {
		if ctx.Err() != nil {
			return context.Cause(ctx) // the known sizes stay valid
		}
		if err := a.readSiblings(d, now, found); err != nil {
			errs = append(errs, fmt.Errorf("read the usage records in %s: %w", filepath.Dir(d.root), err))
		}
	}
	a.neighbours = found
	return joinFew(errs)
}

func (a *area) readSiblings(d *dir, now time.Time, found map[string]*neighbour) (err error) {
	path, own := filepath.Dir(d.root), filepath.Base(d.root)
	parent, err := a.cfg.FS.OpenDir(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, parent.Close()) }()
	names, err := parent.ReadDir(".")
	errs := []error{err}
	for _, name := range names {
		if name == own {
			continue
		}
		n := &neighbour{parent: path, name: name}
		known := a.neighbours[n.path()]
		if known != nil {
			n = known
		}
		if a.cfg.OpenFolders.read(n) {
			found[n.path()] = n
			continue
		}
		err := n.read(a.cfg.FS, parent, now)
		if errors.Is(err, errNoFolder) {
			continue
		}
		if err == nil || known != nil { // an unreadable folder counts with its last known size
			found[n.path()] = n
		}
		errs = append(errs, err)
	}
	return joinFew(errs)
}

// anyUnknown reports whether the size of a folder is unknown: an earlier release may have created
// it, or its owner may have ended after writing more than its record shows.
func (a *area) anyUnknown() bool {
	now := a.clock.Now()
	for _, n := range a.neighbours {
		if !n.known || !n.local && !n.record.Closed && !n.live(now, a.cfg.host) {
			return true
		}
	}
	return false
}

// total returns the bytes that all folders have or will have soon.
func (a *area) total() int64 {
	peaks := a.neighbourPeaks()
	return peaks + min(a.space.demand(), math.MaxInt64-peaks)
}

// neighbourPeaks returns the sum of the peaks of the other folders. An owner at its bound evicts
// blocks before it renews its record, so that only the peak shows that it needs more space. The sum
// exceeds the current bytes by about a sixteenth of the bound at most, because a peak may be older
// than the owner's share, and a record may be wrong.
func (a *area) neighbourPeaks() (sum int64) {
	more := max(a.space.unit, a.bound/16/int64(len(a.neighbours)+1))
	for _, n := range a.neighbours {
		sum += min(n.peak(a.bound, more), math.MaxInt64-sum)
	}
	return sum
}

// neighbourBytes returns the bytes that the other folders have now.
func (a *area) neighbourBytes() (sum int64) {
	for _, n := range a.neighbours {
		sum += min(n.bytes(a.bound), math.MaxInt64-sum)
	}
	return sum
}

// setShare sets the bounds of this tier's folders. total is the bytes of all folders. If it is
// above the high watermark, setShare sets the tier's share. It sets the share again after every
// live owner has renewed its record, or after answerTimeout. Until then records show old sizes.
func (a *area) setShare(total int64) {
	now, others := a.clock.Now(), a.neighbourPeaks()
	switch {
	case total <= a.whole.high:
		a.yielding, others = false, a.neighbourBytes()
	case a.yielding && !a.allAnswered() && now.Sub(a.yieldedAt) < answerTimeout:
		return
	default:
		a.yielding, a.yieldedAt = true, now
		a.cut = len(a.neighbours) > 0
		for _, n := range a.neighbours {
			n.answered = false
		}
	}
	a.space.setLimits(a.whole.part(a.storedBytes(), others, len(a.neighbours), a.space.unit))
}

// allAnswered reports whether the records of all folders in use were renewed since setShare last
// set the share.
func (a *area) allAnswered() bool {
	for _, n := range a.neighbours {
		if n.inUse && !n.answered {
			return false
		}
	}
	return true
}

// part returns the bounds of folders with own bytes if the other folders have others bytes. Up to
// the high watermark, that is the rest of the bound. Above it, it is a share in proportion to own.
// A sixteenth of the bound is divided equally among all folders and added, so that a new folder can
// grow.
func (l limits) part(own, others int64, folders int, unit int64) limits {
	total := own + min(others, math.MaxInt64-own)
	down := func(bytes int64) int64 { return bytes - bytes%unit }
	scale := func(bytes int64) int64 {
		return int64(float64(bytes) * (float64(own) / float64(max(total, 1))))
	}
	out := limits{most: l.most - others, high: l.high - others, low: max(l.low-others, scale(l.low))}
	if total > l.high {
		out = limits{most: scale(l.most), high: scale(l.high), low: scale(l.low)}
	}
	out = limits{most: down(out.most), high: down(out.high), low: down(out.low)}
	least := max(unit, down(l.most/16/int64(folders+1)))
	if out.most < least {
		return limits{most: least, high: least, low: least - max(unit, down(least/10))}
	}
	out.high = min(max(out.high, unit), out.most)
	out.low = min(out.low, out.most-unit, out.high)
	return out
}

// writeRecords renews the usage records of the area's folders. If closing is set, it marks the
// folders that no other process has open as closed.
func (a *area) writeRecords(closing bool) {
	if !a.cfg.SharedBound || a.cfg.ReadOnly {
		return
	}
	now := a.clock.Now()
	a.cut, a.renew, a.recordedAt = false, false, now
	if _, n := a.ops.Count(); n != a.operations || a.used.IsZero() {
		a.operations, a.used = n, now
	}
	above := a.space.takePeak()
	var errs []error
	for _, d := range a.dirs {
		s := d.session.Load()
		if s == nil {
			continue
		}
		r := blockdir.Record{Used: a.used, Renewed: now, Host: a.cfg.host}
		r.Blocks, r.Bytes = a.space.storedIn(d)
		r.Peak, above = r.Bytes+above, 0
		if closing {
			r.Peak = r.Bytes
			sessions, err := blockdir.Names(d, tmpName)
			r.Closed = err == nil && len(sessions) == 1
		}
		if err := blockdir.WriteRecord(d, s.temp(), r); err != nil {
			a.count.errors.Add(1)
			errs = append(errs, fmt.Errorf("directory %s: %w", d.root, err))
		}
	}
	a.recordErr = errors.Join(errs...)
}
