package file

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// liveFor is the time for which a record that another host has renewed counts as that of a live
// owner, because file locks may not work between hosts.
const liveFor = 10 * time.Minute

// busyFor is the time after which a folder locked by another process counts as in use.
const busyFor = time.Minute

// neighbour is the folder of another identity in the same parent directory. Only the area's
// collector uses it.
type neighbour struct {
	parent, name string // the parent directory, and the folder in it
	markerInfo   dirfs.Info
	formats      block.Formats
	record       blockdir.Record // last plausible record, or a count
	stored       blockdir.Record // last plausible record as stored
	known        bool            // record is valid
	counted      time.Time       // time of a count that could not be stored, or zero
	renewed      time.Time       // last renewal by this process's clock, never in the future
	answered     bool            // the record was renewed since bind set the share
	checked      bool            // the numbers of record are a count
	local        bool            // this process has the folder open
	inUse        bool            // a process of this host has the folder open, or the folder cannot be removed
	busySince    time.Time       // time since which another process holds the folder's lock, or zero
	cold         []candidate     // blocks to remove, coldest first
}

func (n *neighbour) path() string { return n.parent + "/" + n.name }

// bytes returns the folder's size by its record, at most the bound.
func (n *neighbour) bytes(bound int64) int64 {
	if !n.known {
		return 0
	}
	return min(n.record.Bytes, bound)
}

// peak returns the largest size in bytes since the previous record: at least bytes, and at most
// more above it.
func (n *neighbour) peak(bound, more int64) int64 {
	if !n.known {
		return 0
	}
	bytes := n.bytes(bound)
	return min(n.record.Peak, bytes+min(more, bound-bytes))
}

// live reports whether an owner on another host has recently renewed the record.
func (n *neighbour) live(now time.Time, host string) bool {
	elsewhere := host == "" || n.record.Host != host
	return n.known && !n.record.Closed && elsewhere && now.Sub(n.renewed) < liveFor
}

// used returns the time of the folder's last use. A time in the future counts as now.
func (n *neighbour) used(now time.Time) time.Time {
	if n.record.Used.After(now) {
		return now
	}
	return n.record.Used
}

// errNoFolder means that the name is not a folder with the marker of a directory of blocks. Such
// names are ignored.
var errNoFolder = errors.New("not a folder of blocks")

// notFolder reports whether a name in a directory of blocks exists but is not a folder. Such a name
// is ignored.
func notFolder(d dirfs.Dir, name string) bool {
	info, err := d.Stat(name)
	return err == nil && !info.Type.IsDir()
}

// openFolder opens a folder directly below a directory. It never follows a link.
func openFolder(fsys dirfs.FS, parent dirfs.Dir, path, name string) (dirfs.Dir, error) {
	named, err := parent.Stat(name)
	if blockdir.Gone(err) || err == nil && !named.Type.IsDir() {
		return nil, errNoFolder
	}
	if err != nil {
		return nil, err
	}
	d, err := fsys.OpenDir(path)
	if blockdir.Gone(err) || errors.Is(err, unix.ENOTDIR) {
		return nil, errNoFolder
	}
	if err != nil {
		return nil, err
	}
	// The path may have become a link in the meantime.
	opened, err := d.Stat(".")
	if err == nil && (opened.Inode != named.Inode || opened.Device != named.Device) {
		err = errNoFolder
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// read reads the folder's marker and record. It returns errNoFolder if there is no valid marker.
func (n *neighbour) read(fsys dirfs.FS, parent dirfs.Dir, now time.Time) (err error) {
	d, err := openFolder(fsys, parent, n.path(), n.name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if err := n.readMarker(d); err != nil {
		return err
	}
	if !n.counted.IsZero() && now.Sub(n.counted) >= answerTimeout { // the count is too old
		n.counted, n.known, n.checked = time.Time{}, false, false
	}
	r, err := blockdir.ReadRecord(d)
	if err == nil {
		err = r.Check(n.formats)
	}
	switch {
	case err == nil:
		n.setRecord(r, now)
	case blockdir.Gone(err), errors.Is(err, errdefs.ErrCorrupt), errors.Is(err, errdefs.ErrMismatch):
		if n.counted.IsZero() {
			n.known, n.checked = false, false
		}
	default:
		return fmt.Errorf("folder %s: %w", n.path(), err)
	}
	return nil
}

func (n *neighbour) readMarker(d dirfs.Dir) error {
	info, err := d.Stat(blockdir.MarkerName)
	if err == nil && info == n.markerInfo {
		return nil
	}
	var m Marker
	if err == nil {
		m, err = blockdir.ReadMarker(d, blockdir.Files)
	}
	switch {
	case blockdir.Gone(err), errors.Is(err, errdefs.ErrCorrupt), errors.Is(err, errdefs.ErrMismatch), errors.Is(err, unix.ENOTDIR):
		return errNoFolder
	case err != nil:
		return fmt.Errorf("folder %s: %w", n.path(), err)
	}
	n.markerInfo, n.formats = info, m.Formats()
	return nil
}

// setRecord stores the folder's record in n. If the record differs from the last one, it counts as
// renewed now, regardless of the time in it.
func (n *neighbour) setRecord(r blockdir.Record, now time.Time) {
	old := &n.stored
	same := r.Bytes == old.Bytes && r.Blocks == old.Blocks && r.Peak == old.Peak && r.Closed == old.Closed && r.Host == old.Host &&
		r.Used.Equal(old.Used) && r.Renewed.Equal(old.Renewed)
	if n.known && same {
		return
	}
	n.renewed = now
	if !n.known && r.Renewed.Before(now) {
		n.renewed = r.Renewed
	}
	n.record, n.stored, n.counted, n.known, n.answered, n.checked = r, r, time.Time{}, true, true, false
	n.cold = nil
}

// withUnused calls f with the folder and its parent directory while it holds the folder's lock. If
// a process has the folder open, it sets n.inUse instead.
func (a *area) withUnused(ctx context.Context, n *neighbour, f func(parent, d dirfs.Dir) error) (err error) {
	parent, err := a.cfg.FS.OpenDir(n.parent)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, parent.Close()) }()
	d, err := openFolder(a.cfg.FS, parent, n.path(), n.name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	now := a.clock.Now()
	locked, err := blockdir.TryLock(d, func() error {
		n.busySince = time.Time{}
		if err := n.readMarker(d); err != nil {
			return err
		}
		if r, err := blockdir.ReadRecord(d); err == nil && r.Check(n.formats) == nil {
			n.setRecord(r, now)
		}
		live, err := anySession(d)
		if n.inUse = live || n.live(now, a.cfg.host); n.inUse || err != nil {
			return err
		}
		return f(parent, d)
	})
	if !locked && err == nil {
		if n.busySince.IsZero() {
			n.busySince = now
		}
		n.inUse = now.Sub(n.busySince) >= busyFor
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, errNoFolder) {
		n.inUse = true // until readNeighbours reads the folder again
		err = fmt.Errorf("free space in folder %s, which no process has open: %w", n.path(), blockdir.WriteError(err))
	}
	return err
}

// busy reports whether another process holds the folder's lock, to open the folder or to remove
// blocks.
func (n *neighbour) busy() bool { return !n.busySince.IsZero() && !n.inUse }

// anySession reports whether a process of this host has the directory open for writing. The caller
// holds the directory's lock.
func anySession(d dirfs.Dir) (bool, error) {
	s, err := liveSession(d)
	return s != "", err
}

// liveSession returns the folder of a session of a running process of this host, or "". The caller
// holds the directory's lock.
func liveSession(d dirfs.Dir) (string, error) {
	sessions, err := blockdir.Names(d, tmpName)
	if err != nil && notFolder(d, tmpName) {
		return "", nil
	}
	for _, s := range sessions {
		lock, live, perr := probeSession(d, tmpName+"/"+s)
		if lock != nil {
			perr = errors.Join(perr, lock.Close())
		}
		if live {
			return tmpName + "/" + s, nil
		}
		err = errors.Join(err, perr)
	}
	return "", err
}
