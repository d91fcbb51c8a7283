package file

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// reclaimMost is the maximum number of blocks that are removed from a folder at a time. A process
// that opens the folder must wait during that time.
const reclaimMost = 4096

// reclaim removes blocks of folders that no process has open, least recently used folder first,
// until all folders together are at the low watermark. It first counts the blocks of such folders,
// because a record may be wrong. It skips files that cannot be removed, and returns their errors.
func (a *area) reclaim(ctx context.Context) error {
	now := a.clock.Now()
	var idle []*neighbour
	var errs []error
	try := func(n *neighbour, f func(parent, d dirfs.Dir) error) {
		n.inUse = false
		err := a.withUnused(ctx, n, f)
		if errors.Is(err, errNoFolder) {
			delete(a.neighbours, n.path())
		} else if err != nil {
			errs = append(errs, err)
		}
	}
	for _, n := range a.neighbours {
		if n.local || n.live(now, a.cfg.host) {
			n.inUse = true
			continue
		}
		if !n.checked {
			try(n, func(_, d dirfs.Dir) error { return a.countFolder(ctx, n, d) })
		}
		if n.checked {
			idle = append(idle, n)
		}
	}
	if a.total() <= a.whole.high {
		return joinFew(errs)
	}
	slices.SortFunc(idle, func(a, b *neighbour) int {
		if c := a.used(now).Compare(b.used(now)); c != 0 {
			return c
		}
		return strings.Compare(a.path(), b.path())
	})
	for _, n := range idle {
		for before := int64(-1); ctx.Err() == nil && a.total() > a.whole.low && n.checked && n.record.Bytes != before; {
			before = n.record.Bytes
			try(n, func(parent, d dirfs.Dir) error { return a.emptyFolder(ctx, n, parent, d, a.total()-a.whole.low) })
			if n.inUse || n.busy() {
				break
			}
		}
	}
	return joinFew(errs)
}

// countFolder counts the blocks of a folder that no process has open, and corrects its record. If
// the record cannot be written, the count is valid for answerFor.
func (a *area) countFolder(ctx context.Context, n *neighbour, d dirfs.Dir) error {
	r, err := countRecord(ctx, d, n.formats)
	if err != nil {
		return err
	}
	now := a.clock.Now()
	if n.known {
		r.Used = n.used(now)
	} else if r.Used.IsZero() || r.Used.After(now) {
		r.Used = now
	}
	n.checked = true
	return a.keepRecord(n, d, r)
}

// countRecord counts the blocks of a directory by their names. Used is the modification time of the
// newest bucket folder.
func countRecord(ctx context.Context, d dirfs.Dir, formats block.Formats) (r blockdir.Record, err error) {
	there, err := listBuckets(d)
	if err != nil {
		return r, err
	}
	for b := range buckets {
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
		if !there[b] {
			continue
		}
		keys, _, err := listBucket(d, byte(b))
		if err != nil && !notFolder(d, bucketName(byte(b))) {
			return r, err
		}
		for _, key := range keys {
			r.Bytes += formats.ImageBytes(key)
		}
		r.Blocks += int64(len(keys))
		if info, err := d.Stat(bucketName(byte(b))); err == nil && info.Modified.After(r.Used) {
			r.Used = info.Modified
		}
	}
	return r, nil
}

// keepRecord writes the record of a folder that no process has open.
func (a *area) keepRecord(n *neighbour, d dirfs.Dir, r blockdir.Record) error {
	now := a.clock.Now()
	r.Peak, r.Renewed, r.Host, r.Closed = r.Bytes, now, a.cfg.host, true
	n.record, n.known, n.counted = r, true, now
	if err := blockdir.Remove(d, blockdir.RecordTemp); err != nil {
		return err
	}
	if err := blockdir.WriteRecord(d, blockdir.RecordTemp, r); err != nil {
		return err
	}
	n.stored, n.counted = r, time.Time{}
	return nil
}

// emptyFolder removes the coldest blocks of a folder that no process has open. It stops after the
// given number of bytes or after reclaimMost blocks. It removes a folder without blocks.
func (a *area) emptyFolder(ctx context.Context, n *neighbour, parent, d dirfs.Dir, bytes int64) error {
	r, removed := n.record, 0
	pins, err := blockdir.ReadPins(d)
	if errors.Is(err, errdefs.ErrCorrupt) {
		err = nil // the intact entries are in force
	}
	removals := blockdir.NewRemovals(d, a.bound)
	defer removals.Flush()
	for ; err == nil && bytes > 0 && removed < reclaimMost && ctx.Err() == nil; removed++ {
		if len(n.cold) == 0 {
			need := blocksOf(n.formats, bytes)
			n.cold, err = coldest(ctx, []dirfs.Dir{d}, a.clock.Now(), min(need+max(coldMore, r.Blocks/4), coldMost), func(key block.Key) bool { return !pins[key] })
		}
		if len(n.cold) == 0 || err != nil {
			n.checked = r.Blocks == 0 || len(pins) > 0 // if false, count the blocks again
			break
		}
		c := n.cold[0]
		n.cold = n.cold[1:]
		if pins[c.key] {
			continue
		}
		if rerr := blockdir.Remove(d, blockName(c.key)); rerr != nil {
			err = fmt.Errorf("remove cold block %s: %w", c.key, rerr)
			break
		}
		removals.Add(a.clock.Now(), c.key, tier.CauseShare)
		size := n.formats.ImageBytes(c.key)
		bytes -= size
		r.Bytes, r.Blocks = max(0, r.Bytes-size), max(0, r.Blocks-1)
		a.count.reclaimed.Add(1)
	}
	if err == nil && r.Blocks == 0 {
		var gone bool
		if gone, err = removeFolder(parent, d, n.name); gone {
			delete(a.neighbours, n.path())
			n.record, n.checked = blockdir.Record{}, false
			return nil
		}
	}
	return errors.Join(err, a.keepRecord(n, d, r))
}

// removeFolder removes a folder without blocks. The caller has locked it. If the folder contains
// files that kvlane has not made, its marker and lock file stay.
func removeFolder(parent, d dirfs.Dir, name string) (gone bool, err error) {
	if notFolder(d, tmpName) || notFolder(d, blockdir.Quarantine) {
		return false, nil
	}
	if _, left, err := sweep(d); left > 0 || err != nil {
		return false, err
	}
	if err := blockdir.TrimQuarantine(d, 0); err != nil {
		return false, err
	}
	all, err := d.ReadDir(".")
	if err != nil {
		return false, err
	}
	var files []string // files that are removed last: without them the folder is not a directory of blocks
	for _, n := range all {
		_, bucket := parseBucket(n)
		switch {
		case bucket && notFolder(d, n):
			return false, nil
		case bucket || n == tmpName || n == blockdir.Quarantine:
			if err := blockdir.Remove(d, n); errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
				return false, nil
			} else if err != nil {
				return false, err
			}
		case ownFile(n):
			files = append(files, n)
		default:
			return false, nil
		}
	}
	// The lock file is removed last: a process that waits for the lock then finds it removed.
	slices.SortFunc(files, func(a, b string) int { return removalOrder(a) - removalOrder(b) })
	for _, n := range files {
		if err := blockdir.Remove(d, n); err != nil {
			return false, err
		}
	}
	err = parent.Remove(name)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) || blockdir.Gone(err) {
		err = nil // another process has created it again
	}
	return err == nil, err
}

// ownFile reports whether a file directly in a directory of blocks was made by kvlane.
func ownFile(name string) bool {
	return name == blockdir.MarkerName || name == blockdir.LockName || name == blockdir.RecordName || name == blockdir.RecordTemp ||
		name == blockdir.PinsName || name == blockdir.PinsTemp ||
		name == blockdir.RemovalsName || name == blockdir.RemovalsOld || strings.HasPrefix(name, blockdir.MarkerTemp)
}

func removalOrder(name string) int {
	switch name {
	case blockdir.MarkerName:
		return 1
	case blockdir.LockName:
		return 2
	}
	return 0
}
