package log

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/owner"
)

// Verify verifies every block of the directory and finds files that do not belong there. It changes
// nothing, so it works on a read-only mount. An incomplete group, whose writer has ended, is not a
// finding, because its Puts had not returned. progress may be nil. It is called after each block.
// Findings are not an error. Verify returns ErrNotFound if there is neither a marker nor a segment.
func Verify(ctx context.Context, dir string, progress func(blocks, bytes int64)) (Report, error) {
	return verify(ctx, dirfs.OS(), dir, progress)
}

func verify(ctx context.Context, fsys dirfs.FS, path string, progress func(blocks, bytes int64)) (Report, error) {
	v := verifier{fsys: fsys, root: filepath.Clean(path), progress: progress, report: Report{Sums: make(map[block.SumAlgo]int64)}}
	if err := v.run(ctx); err != nil {
		return v.report, fmt.Errorf("verify directory %s: %w", v.root, err)
	}
	return v.report, nil
}

type verifier struct {
	fsys      dirfs.FS
	root      string
	progress  func(blocks, bytes int64)
	report    Report
	markerBad bool
	known     bool // the formats are known
}

func (v *verifier) found(name string, p blockdir.Problem, detail string) {
	v.foundBlock(block.Key{}, name, p, detail)
}

func (v *verifier) foundBlock(key block.Key, name string, p blockdir.Problem, detail string) {
	v.report.Add(v.root, key, name, p, detail)
}

func (v *verifier) run(ctx context.Context) (err error) {
	d, err := v.fsys.OpenDir(v.root)
	if blockdir.Gone(err) {
		err = fmt.Errorf("%w: %w", errdefs.ErrNotFound, err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if err := v.readMarker(ctx, d); err != nil {
		return err
	}
	v.top(d)
	if !v.known {
		return nil
	}
	return v.index(ctx, func(t *Tier) error { return v.blocks(ctx, t) })
}

// readMarker reads the marker, or else the headers of the groups.
func (v *verifier) readMarker(ctx context.Context, d dirfs.Dir) error {
	m, err := blockdir.ReadMarker(d, blockdir.Log)
	if err == nil {
		v.report.Marker, v.known = m, true
		return nil
	}
	if errors.Is(err, errdefs.ErrMismatch) {
		return err
	}
	m, n, merr := markerFromSegments(ctx, d)
	switch {
	case blockdir.Gone(err) && n == 0:
		return fmt.Errorf("not a directory of blocks: %w: %w", errdefs.ErrNotFound, err)
	case blockdir.Gone(err):
		v.found(blockdir.MarkerName, blockdir.Lost, "the directory has blocks")
		v.markerBad = true
	case errors.Is(err, errdefs.ErrCorrupt):
		v.found(blockdir.MarkerName, blockdir.Damaged, err.Error())
		v.markerBad = true
	default:
		v.found(blockdir.MarkerName, blockdir.Unjudged, err.Error())
	}
	if merr != nil {
		v.found(".", blockdir.Unjudged, "the identity of the blocks: "+merr.Error())
	} else if n > 0 {
		v.report.Marker, v.known = m, true
	}
	return nil
}

// markerFromSegments returns a marker derived from the groups in the segments, and the number of
// segments.
func markerFromSegments(ctx context.Context, d dirfs.Dir) (m blockdir.Marker, segments int, err error) {
	all, err := d.ReadDir(".")
	if err != nil {
		return m, 0, err
	}
	var id [16]byte
	var formats block.Formats
	for _, name := range all {
		number, ok := parseSegment(name)
		if !ok {
			continue
		}
		segments++
		f, ferr := d.Open(name, os.O_RDONLY)
		if ferr != nil {
			continue
		}
		info, ferr := f.Stat()
		if ferr == nil {
			_, ferr = scan(ctx, f, number, 0, info.Bytes, id, nil, func(h *header) error {
				id = h.directory
				return learnFormats(ctx, f, h, &formats)
			})
		}
		if err = errors.Join(ferr, f.Close()); err != nil {
			return m, segments, err
		}
	}
	if segments > 0 {
		if err = formats.Validate(); err != nil {
			return m, segments, err
		}
	}
	m = blockdir.NewMarker(blockdir.Log, formats, nil)
	m.Directory = hex.EncodeToString(id[:])
	return m, segments, nil
}

// learnFormats adds the unknown formats of a group. A block of kind whole has its format in a
// separate header.
func learnFormats(ctx context.Context, f io.ReaderAt, h *header, formats *block.Formats) error {
	for n, info := range h.formats {
		if slices.ContainsFunc(*formats, func(have block.Format) bool { return have.Identity == info.digest }) {
			continue
		}
		lens := info.lens
		for i := range h.records {
			r := &h.records[i]
			if lens != nil || r.kind != whole || r.number != n {
				continue
			}
			b := make([]byte, min(info.image, int64(block.MaxShards*24+2*page)))
			if _, err := f.ReadAt(b, h.at.off+r.off); err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			if head, err := block.DecodeHeader(b); err == nil && head.Identity == info.digest {
				if l, err := head.Layout(); err == nil {
					lens = l.ShardSizes()
				}
			}
		}
		if l, err := block.NewLayout(lens); err == nil && ctx.Err() == nil {
			*formats = append(*formats, block.Format{Layout: l, Identity: info.digest})
		}
	}
	return context.Cause(ctx)
}

// top finds files that do not belong in the directory.
func (v *verifier) top(d dirfs.Dir) {
	all, err := d.ReadDir(".")
	if err != nil {
		v.found(".", blockdir.Unjudged, err.Error())
	}
	for _, n := range all {
		_, isSegment := parseSegment(n)
		info, err := d.Stat(n)
		switch {
		case err != nil && !blockdir.Gone(err):
			v.found(n, blockdir.Unjudged, err.Error())
		case n == blockdir.LockName && !info.Regular():
			v.found(n, blockdir.Damaged, blockdir.BadLock(d))
		case n == blockdir.MarkerName, n == blockdir.LockName, n == "lost+found":
		case (n == blockdir.RemovalsName || n == blockdir.RemovalsOld) && info.Regular():
		case n == blockdir.Quarantine && info.Type.IsDir(), isSegment && info.Regular(), n == indexName && info.Regular():
		case n == blockdir.PinsName: // opening reports damage
		case n == owner.Name && info.Type == fs.ModeSocket:
		case leftover(n) && info.Regular():
			if !isOpen(d) {
				v.found(n, blockdir.Leftover, "its process has died; the next process that opens the directory removes it")
			}
		default:
			v.found(n, blockdir.Foreign, "not created by kvlane")
		}
	}
	if isOpen(d) {
		v.report.LiveSessions = 1
	}
	blockdir.NoteByHand(d, v.root, v.report.Findings)
	bad, err := blockdir.Quarantined(d)
	if v.report.Quarantined = len(bad); err != nil {
		v.found(blockdir.Quarantine, blockdir.Unjudged, err.Error())
	}
}

// isOpen reports whether a process has the directory open.
func isOpen(d dirfs.Dir) bool {
	lock, err := blockdir.OpenLock(d, blockdir.LockName)
	if err != nil {
		return false
	}
	err = lock.Lock()
	return errors.Is(errors.Join(err, lock.Close()), errdefs.ErrBusy)
}

// index reads the index and the segments into a read-only tier, and calls use with the tier.
func (v *verifier) index(ctx context.Context, use func(t *Tier) error) (err error) {
	t := newTier(existingConfig(v.fsys, v.root, v.report.Marker))
	defer func() {
		t.cancel()
		err = errors.Join(err, t.closeFiles())
	}()
	if t.id, err = directoryID(v.report.Marker); err != nil {
		return err
	}
	if err = t.openDir(); err != nil {
		return err
	}
	if err = t.recover(ctx); err == nil {
		err = t.openPins()
	}
	if err != nil {
		return err
	}
	for _, s := range t.damage {
		v.found(s.name, s.problem, s.detail)
	}
	for _, g := range t.segments.list() {
		if size := g.size.Load(); g.end.Load() == 0 && !g.unread && !isUnfinished(ctx, g.file, size) {
			v.found(segmentName(g.number), blockdir.Foreign, "segment of another log, or not a segment: no group of this log is in it")
			v.report.Findings[len(v.report.Findings)-1].ByHand = true // the file may be the only copy
		}
	}
	return use(t)
}

// blocks verifies every block of the index.
func (v *verifier) blocks(ctx context.Context, t *Tier) error {
	buf := make([]byte, t.formats.MaxImageBytes())
	found, err := t.blocks(ctx, func(g *segment, key block.Key, e entry) error {
		f := t.formats[e.group]
		image := buf[:f.Layout.ImageBytes()]
		_, lerr := t.load(ctx, key, image, true)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(lerr, errdefs.ErrNotFound):
			return nil
		case errors.Is(lerr, errdefs.ErrCorrupt):
			v.foundBlock(key, segmentName(g.number), blockdir.Damaged, fmt.Sprintf("block %s at %d: %v", key, e.off(), lerr))
		case lerr != nil:
			v.found(segmentName(g.number), blockdir.Unjudged, fmt.Sprintf("block %s at %d: %v", key, e.off(), lerr))
			return nil
		default:
			if h, err := f.Verified(image); err == nil {
				v.report.Sums[h.SumAlgo]++
			}
		}
		v.report.Blocks++
		v.report.Bytes += int64(len(image))
		if v.progress != nil {
			v.progress(v.report.Blocks, v.report.Bytes)
		}
		return nil
	})
	for _, f := range found {
		v.found(f.name, f.problem, f.detail)
	}
	return err
}

// Repair verifies a directory like Verify and repairs it. It derives a lost or damaged marker from
// the headers of the groups. It moves damaged blocks to quarantine, writes a damaged checkpoint
// again, and removes files of ended processes. Files that were not made by kvlane or could not be
// examined stay and are in Unrepaired. It returns ErrBusy if a process has the directory open.
//
// progress may be nil. It is called after each block, as by Verify: before the repair, and again
// after it, with the totals so far of both.
func Repair(ctx context.Context, dir string, progress func(blocks, bytes int64)) (Repaired, error) {
	return repair(ctx, dirfs.OS(), dir, progress)
}

func repair(ctx context.Context, fsys dirfs.FS, path string, progress func(blocks, bytes int64)) (r Repaired, err error) {
	v := verifier{fsys: fsys, root: filepath.Clean(path), progress: progress, report: Report{Sums: make(map[block.SumAlgo]int64)}}
	if err := v.run(ctx); err != nil {
		return r, fmt.Errorf("repair directory %s: %w", v.root, err)
	}
	r.Report = v.report
	if v.known {
		if err := v.repair(ctx, &r); err != nil {
			return r, fmt.Errorf("repair directory %s: %w", v.root, blockdir.WriteError(err))
		}
	}
	after, err := verify(ctx, fsys, path, r.Again(progress))
	r.SetAfter(after)
	return r, err
}

func (v *verifier) repair(ctx context.Context, r *Repaired) (err error) {
	if err := blockdir.RepairLock(v.fsys, v.root); err != nil {
		return err
	}
	if v.markerBad {
		if err := v.repairMarker(); err != nil {
			return err
		}
		r.MarkerMade = true
	}
	const keepAll = 1 << 30
	t, err := Open(ctx, Config{Dir: v.root, Formats: v.report.Marker.Formats(), FS: v.fsys, QuarantineMax: keepAll})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close(context.WithoutCancel(ctx))) }()
	buf := make([]byte, t.formats.MaxImageBytes())
	_, err = t.blocks(ctx, func(_ *segment, key block.Key, _ entry) error {
		image := buf[:t.formats.ImageBytes(key)]
		e, lerr := t.load(ctx, key, image, true)
		if !errors.Is(lerr, errdefs.ErrCorrupt) {
			return nil
		}
		r.SetAside++
		kept, serr := t.setAside(ctx, key, e, image)
		// The index contains a key at most once.
		if at := slices.IndexFunc(r.Findings, func(f blockdir.Finding) bool { return f.Key == key }); at >= 0 && kept != "" {
			r.Findings[at].MovedTo = v.root + "/" + kept
		}
		return serr
	})
	r.SweptFiles = int(t.count.swept.Load())
	return err
}

// repairMarker writes a new marker and moves the old one to quarantine.
func (v *verifier) repairMarker() (err error) {
	d, err := v.fsys.OpenDir(v.root)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	lock, err := blockdir.LockDir(d)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	return blockdir.RepairMarker(d, time.Now(), v.report.Marker)
}

// Clear removes files that are not blocks from the directory: quarantined images, and files not
// made by kvlane. Segments stay. A requested file stays, and is in Left, if it contains an intact
// block or a group of blocks of any log. A process may have the directory open. If u names another
// kind of file, Clear returns ErrInvalid and removes nothing. It returns ErrNotFound if this is not
// a directory of blocks, and ErrCorrupt or ErrMismatch if the marker cannot be read.
func Clear(ctx context.Context, dir string, u Unwanted) (Cleared, error) {
	return clearOf(ctx, dirfs.OS(), dir, u)
}

func clearOf(ctx context.Context, fsys dirfs.FS, path string, u Unwanted) (c Cleared, err error) {
	v := verifier{fsys: fsys, root: filepath.Clean(path)}
	fail := func(err error) (Cleared, error) { return c, fmt.Errorf("clear directory %s: %w", v.root, err) }
	m, err := markerOf(fsys, v.root)
	if blockdir.Gone(err) {
		err = fmt.Errorf("not a directory of blocks: %w: %w", errdefs.ErrNotFound, err)
	}
	if err != nil {
		return fail(err)
	}
	d, err := fsys.OpenDir(v.root)
	if err != nil {
		return fail(err)
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	v.top(d)
	if u.Foreign || len(u.Names) > 0 {
		v.report.Marker = m
		if err := v.index(ctx, func(*Tier) error { return nil }); err != nil {
			return fail(err)
		}
	}
	blocks := blockdir.Blocks{Formats: m.Formats(), KeepReason: func(f dirfs.File, bytes int64) (string, error) {
		return keepReason(ctx, f, bytes, m.Formats())
	}}
	if c, err = blockdir.Clear(ctx, d, v.root, blocks, v.report.Findings, u); err != nil {
		return fail(err)
	}
	return c, nil
}
