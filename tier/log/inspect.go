package log

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// Types of reports about a directory.
type (
	// Inspection describes the contents of a directory.
	Inspection = blockdir.Inspection
	// Totals counts blocks and their bytes.
	Totals = blockdir.Totals
	// Entry is a block in a directory.
	Entry = blockdir.Entry
	// Collected is the result of GC.
	Collected = blockdir.Collected
	// Report is the result of Verify.
	Report = blockdir.Report
	// Repaired is the result of Repair.
	Repaired = blockdir.Repaired
	// Unwanted selects files for Clear.
	Unwanted = blockdir.Unwanted
	// Cleared is the result of Clear.
	Cleared = blockdir.Cleared
)

// Recognises reports whether a directory belongs to a log, by its marker. If the marker cannot be
// read, it looks for segments.
func Recognises(dir string) bool { return recognises(dirfs.OS(), dir) }

func recognises(fsys dirfs.FS, path string) bool {
	d, err := fsys.OpenDir(filepath.Clean(path))
	if err != nil {
		return false
	}
	defer func() { _ = d.Close() }()
	if m, err := blockdir.ReadMarker(d, ""); err == nil {
		return m.Kind == blockdir.Log
	}
	all, err := d.ReadDir(".")
	return err == nil && slices.ContainsFunc(all, func(n string) bool { _, ok := parseSegment(n); return ok })
}

// existing is a directory that a read-only tier has opened for inspection.
type existing struct {
	*Tier
	marker blockdir.Marker
}

// openExisting opens a directory of blocks. Its error begins with "directory".
func openExisting(ctx context.Context, fsys dirfs.FS, path string) (*existing, error) {
	if strings.TrimSpace(path) == "" {
		return nil, fmt.Errorf("directory: no name is given: %w", errdefs.ErrInvalid)
	}
	root := filepath.Clean(path)
	fail := func(err error) (*existing, error) {
		if blockdir.Gone(err) {
			err = fmt.Errorf("not a directory of blocks: %w: %w", errdefs.ErrNotFound, err)
		}
		return nil, fmt.Errorf("directory %s: %w", root, err)
	}
	m, err := markerOf(fsys, root)
	if err != nil {
		return fail(err)
	}
	d := &existing{Tier: newTier(existingConfig(fsys, root, m)), marker: m}
	if err := d.open(ctx); err != nil {
		return fail(errors.Join(err, d.closeExisting()))
	}
	return d, nil
}

func markerOf(fsys dirfs.FS, root string) (m blockdir.Marker, err error) {
	d, err := fsys.OpenDir(root)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return blockdir.ReadMarker(d, blockdir.Log)
}

func existingConfig(fsys dirfs.FS, root string, m blockdir.Marker) Config {
	c := Config{Dir: root, Formats: m.Formats(), FS: fsys, ReadOnly: true}
	c.setDefaults()
	return c
}

func (d *existing) closeExisting() error {
	d.cancel()
	return d.closeFiles()
}

// blocks calls yield for every block of the index, in the order of the log. It skips segments that
// it cannot read, and returns findings about them.
func (t *Tier) blocks(ctx context.Context, yield func(g *segment, key block.Key, e entry) error) (found []finding, err error) {
	has := make(map[uint32]int)
	var some []entry
	for i := range t.table.shards {
		some = t.table.copyShard(i, some[:0])
		for _, e := range some {
			has[e.segment]++
		}
	}
	for _, g := range t.segments.list() {
		_, err := scan(ctx, g.file, g.number, 0, g.end.Load(), t.id, t.formats, func(h *header) error {
			for i := range h.records {
				r := &h.records[i]
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				e, ok := t.table.get(r.key)
				if !ok || r.kind == deleted || e.place != (place{g.number, uint32((h.at.off + r.off) / page), uint16(r.off / page)}) {
					continue
				}
				has[g.number]--
				if err := yield(g, r.key, e); err != nil {
					return errYield{err}
				}
			}
			return nil
		})
		if stop := (errYield{}); errors.As(err, &stop) {
			return found, stop.error
		}
		if ctx.Err() != nil {
			return found, context.Cause(ctx)
		}
		// Segments of other versions were reported when the log was opened.
		if err != nil && !errors.Is(err, errdefs.ErrMismatch) {
			found = append(found, finding{segmentName(g.number), blockdir.Unjudged, err.Error()})
		}
		if n := has[g.number]; n > 0 && err == nil {
			found = append(found, finding{segmentName(g.number), blockdir.Damaged, fmt.Sprintf("the headers of the groups of %d blocks cannot be read", n)})
		}
	}
	return found, nil
}

// errYield wraps an error of the callback.
type errYield struct{ error }

// finding is a blockdir.Finding with a name relative to the directory.
type finding struct {
	name    string
	problem blockdir.Problem
	detail  string
}

// Inspect counts the contents of a directory by the index. Unlike Verify it does not read blocks.
// It needs no Tier, and a process may use the directory during the call. It returns ErrNotFound if
// this is not a directory of blocks, and ErrCorrupt or ErrMismatch if the marker cannot be read.
func Inspect(ctx context.Context, dir string) (Inspection, error) {
	return inspect(ctx, dirfs.OS(), dir)
}

func inspect(ctx context.Context, fsys dirfs.FS, path string) (in Inspection, err error) {
	d, err := openExisting(ctx, fsys, path)
	if err != nil {
		return in, fmt.Errorf("inspect %w", err)
	}
	defer func() { err = errors.Join(err, d.closeExisting()) }()
	in = Inspection{Marker: d.marker, ByGroup: make([]Totals, len(d.formats)), Segments: len(d.segments.list()), SegmentBytes: d.space.usedBytes()}
	var some []entry
	for i := range d.table.shards {
		some = d.table.copyShard(i, some[:0])
		for _, e := range some {
			n := d.formats[e.group].Layout.ImageBytes()
			in.Blocks++
			in.Bytes += n
			in.ByGroup[e.group].Blocks++
			in.ByGroup[e.group].Bytes += n
			if d.pins.Has(e.key) {
				in.Pinned.Blocks++
				in.Pinned.Bytes += n
			}
		}
	}
	if _, err := d.dir.Stat(indexTemp); err == nil {
		in.Temporary++
	}
	bad, err := blockdir.Quarantined(d.dir)
	in.Quarantined = len(bad)
	return in, err
}

// List calls yield for every block of the directory, in the order of the keys. If yield returns an
// error, List returns that error. The time of a block is that of its segment.
func List(ctx context.Context, dir string, yield func(Entry) error) error {
	return list(ctx, dirfs.OS(), dir, yield)
}

func list(ctx context.Context, fsys dirfs.FS, path string, yield func(Entry) error) (err error) {
	d, err := openExisting(ctx, fsys, path)
	if err != nil {
		return fmt.Errorf("list %w", err)
	}
	defer func() { err = errors.Join(err, d.closeExisting()) }()
	var all []Entry
	found, err := d.blocks(ctx, func(g *segment, key block.Key, e entry) error {
		info, err := g.file.Stat()
		f := d.formats[e.group]
		all = append(all, Entry{Key: key, Bytes: f.Layout.ImageBytes(), Modified: info.Modified, Group: int(e.group), Shards: f.Layout.Shards(), Pinned: d.pins.Has(key)})
		return err
	})
	for _, f := range found {
		err = errors.Join(err, fmt.Errorf("%s: %s", f.name, f.detail))
	}
	if err != nil {
		return fmt.Errorf("list directory %s: %w", d.cfg.Dir, err)
	}
	slices.SortFunc(all, func(a, b Entry) int { return bytes.Compare(a.Key[:], b.Key[:]) })
	for _, e := range all {
		if err := yield(e); err != nil {
			return err
		}
	}
	return nil
}

// GC empties segments, those with the least recently used blocks first, until at most targetBytes
// are left. It returns ErrBusy if a process has the directory open. The bytes in Collected are
// those of segments.
//
// progress may be nil. It is called after each segment with the bytes that were removed, and with
// those to remove.
func GC(ctx context.Context, dir string, targetBytes int64, progress func(done, total int64)) (Collected, error) {
	return gc(ctx, dirfs.OS(), dir, targetBytes, progress)
}

func gc(ctx context.Context, fsys dirfs.FS, path string, targetBytes int64, progress func(done, total int64)) (c Collected, err error) {
	m, err := markerOf(fsys, filepath.Clean(path))
	if blockdir.Gone(err) {
		err = fmt.Errorf("not a directory of blocks: %w: %w", errdefs.ErrNotFound, err)
	}
	if err != nil {
		return c, fmt.Errorf("collect directory %s: %w", path, err)
	}
	t, err := Open(ctx, Config{Dir: path, Formats: m.Formats(), FS: fsys})
	if err != nil {
		return c, fmt.Errorf("collect: %w", err)
	}
	defer func() {
		err = errors.Join(err, t.Close(context.WithoutCancel(ctx)))
		c.After = t.space.usedBytes() // Close truncates the segments with moved blocks
	}()
	c.Before, c.Swept = t.space.usedBytes(), int(t.count.swept.Load())
	if targetBytes < 0 {
		return c, fmt.Errorf("collect directory %s down to %d bytes: %w", path, targetBytes, errdefs.ErrInvalid)
	}
	removed, left := t.gc(ctx, targetBytes, func(used int64) {
		if progress != nil && c.Before > targetBytes {
			progress(c.Before-used, c.Before-targetBytes)
		}
	})
	c.Removed, c.Left = int64(removed), left
	return c, context.Cause(ctx)
}

// directoryID returns the id in a marker.
func directoryID(m blockdir.Marker) (id [16]byte, err error) {
	_, err = hex.Decode(id[:], []byte(m.Directory))
	return id, err
}
