package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/internal/usage"
	"github.com/kvlane/kvlane/tier/owner"
)

// addTotals adds keys to the totals of all blocks and to those of their page groups.
func addTotals(keys []block.Key, formats block.Formats, all *Totals, by []Totals) {
	all.Blocks += int64(len(keys))
	for _, key := range keys {
		if g := formats.Group(key); g >= 0 {
			n := formats[g].Layout.ImageBytes()
			all.Bytes += n
			by[g].Blocks++
			by[g].Bytes += n
		}
	}
}

// Inspect counts the contents of a directory by file names. Unlike Verify it does not read blocks.
// It needs no Tier, and processes may use the directory during the call. It returns ErrNotFound if
// this is not a directory of blocks, and ErrCorrupt or ErrMismatch if the marker cannot be read.
func Inspect(ctx context.Context, dir string) (Inspection, error) {
	return inspect(ctx, dirfs.OS(), dir)
}

func inspect(ctx context.Context, fsys dirfs.FS, path string) (in Inspection, err error) {
	d, err := openExisting(fsys, path)
	if err != nil {
		return in, fmt.Errorf("inspect %w", err)
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if in, err = d.inspect(ctx); err != nil {
		return in, fmt.Errorf("inspect directory %s: %w", d.root, err)
	}
	return in, nil
}

// existing is a directory of blocks that is opened without a Tier.
type existing struct {
	dirfs.Dir
	root    string
	marker  Marker
	formats block.Formats // of the marker
}

// openExisting opens a directory of blocks. Its error begins with "directory".
func openExisting(fsys dirfs.FS, path string) (*existing, error) {
	if strings.TrimSpace(path) == "" {
		return nil, fmt.Errorf("directory: no name is given: %w", errdefs.ErrInvalid)
	}
	d := &existing{root: filepath.Clean(path)}
	var err error
	if d.Dir, err = fsys.OpenDir(d.root); err == nil {
		if d.marker, err = blockdir.ReadMarker(d, blockdir.Files); err == nil {
			d.formats = d.marker.Formats()
			return d, nil
		}
		err = errors.Join(err, d.Close())
	}
	if blockdir.Gone(err) {
		err = fmt.Errorf("not a directory of blocks: %w: %w", errdefs.ErrNotFound, err)
	}
	return nil, fmt.Errorf("directory %s: %w", d.root, err)
}

func (d *existing) inspect(ctx context.Context) (Inspection, error) {
	in := Inspection{Marker: d.marker, ByGroup: make([]Totals, len(d.formats))}
	for b := range buckets {
		if ctx.Err() != nil {
			return in, context.Cause(ctx)
		}
		keys, _, err := listBucket(d, byte(b))
		if err != nil {
			return in, err
		}
		addTotals(keys, d.formats, &in.Totals, in.ByGroup)
	}
	sessions, err := blockdir.Names(d, tmpName)
	for _, s := range sessions {
		files, ferr := blockdir.Names(d, tmpName+"/"+s)
		err = errors.Join(err, ferr)
		for _, f := range files {
			if f != sessionLock && f != owner.Name {
				in.Temporary++
			}
		}
	}
	bad, berr := blockdir.Quarantined(d)
	in.Quarantined = len(bad)
	pins, perr := blockdir.ReadPins(d)
	for key := range pins {
		if has, err := stored(d, key); has || err != nil {
			in.Pinned.Blocks++
			in.Pinned.Bytes += d.formats.ImageBytes(key)
		}
	}
	if errors.Is(perr, errdefs.ErrCorrupt) {
		perr = nil // Verify reports it
	}
	return in, errors.Join(err, berr, perr)
}

// List calls yield for every block of the directory, in the order of the keys. If yield returns an
// error, List returns that error. Blocks that are added or removed meanwhile may be missing or
// listed.
func List(ctx context.Context, dir string, yield func(Entry) error) error {
	return list(ctx, dirfs.OS(), dir, yield)
}

func list(ctx context.Context, fsys dirfs.FS, path string, yield func(Entry) error) (err error) {
	d, err := openExisting(fsys, path)
	if err != nil {
		return fmt.Errorf("list %w", err)
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	fail := func(err error) error { return fmt.Errorf("list directory %s: %w", d.root, err) }
	pins, err := blockdir.ReadPins(d)
	if err != nil && !errors.Is(err, errdefs.ErrCorrupt) {
		return fail(err)
	}
	for b := range buckets {
		keys, _, err := listBucket(d, byte(b))
		if err != nil {
			return fail(err)
		}
		for _, key := range keys {
			if ctx.Err() != nil {
				return fail(context.Cause(ctx))
			}
			info, err := d.Stat(blockName(key))
			if blockdir.Gone(err) {
				continue
			}
			if err != nil {
				return fail(err)
			}
			e := Entry{Key: key, Bytes: info.Bytes, Modified: info.Modified, Group: d.formats.Group(key), Pinned: pins[key]}
			if e.Group >= 0 {
				e.Shards = d.formats[e.Group].Layout.Shards()
			}
			if err := yield(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// GC removes files of ended processes and then the coldest blocks, until at most targetBytes are
// left. Processes may use the directory during the call. Running reads end normally; later reads of
// a removed block are misses, even if it was retained. Pinned blocks stay. GC skips files that it
// cannot remove and files of another format version. Collected.Left names them.
// progress may be nil. It is called after each block with the bytes that were removed and those to
// remove.
func GC(ctx context.Context, dir string, targetBytes int64, progress func(done, total int64)) (Collected, error) {
	return gc(ctx, dirfs.OS(), dir, targetBytes, progress)
}

func gc(ctx context.Context, fsys dirfs.FS, path string, targetBytes int64, progress func(done, total int64)) (c Collected, err error) {
	if targetBytes < 0 {
		return c, fmt.Errorf("collect directory %s down to %d bytes: %w", path, targetBytes, errdefs.ErrInvalid)
	}
	d, err := openExisting(fsys, path)
	if err != nil {
		return c, fmt.Errorf("collect %w", err)
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if err := d.collect(ctx, targetBytes, &c, progress); err != nil {
		return c, fmt.Errorf("collect directory %s: %w", d.root, blockdir.WriteError(err))
	}
	return c, nil
}

func (d *existing) collect(ctx context.Context, targetBytes int64, c *Collected, report func(done, total int64)) error {
	var errs []error
	left := 0
	err := blockdir.WithLock(ctx, clockwork.NewRealClock(), d, func() (err error) {
		c.Swept, left, err = sweep(d)
		return err
	})
	if err != nil {
		return err
	}
	if left > 0 {
		errs = append(errs, fmt.Errorf("%d temporary files of dead processes cannot be removed", left))
	}
	var stored Totals
	for b := range buckets {
		keys, _, err := listBucket(d, byte(b))
		if err != nil {
			errs = append(errs, err)
		}
		addTotals(keys, d.formats, &stored, make([]Totals, len(d.formats)))
	}
	c.Before, c.After = stored.Bytes, stored.Bytes
	failed := make(map[block.Key]bool)
	pins := blockdir.NewPins(usage.NewKeyLocks())
	removals := blockdir.NewRemovals(d, 0)
	defer removals.Flush()
	for c.After > targetBytes {
		if _, err := pins.Refresh(d); err != nil && !errors.Is(err, errdefs.ErrCorrupt) {
			return err
		}
		cold, err := coldest(ctx, []dirfs.Dir{d}, time.Now(), blocksOf(d.formats, c.After-targetBytes), func(key block.Key) bool { return !failed[key] && !pins.Has(key) })
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		progress := false
		for i := range cold {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if c.After <= targetBytes {
				break
			}
			switch gone, err := d.evict(&cold[i], pins, removals); {
			case err != nil:
				failed[cold[i].key] = true
				errs = append(errs, err)
			case gone:
				c.Removed++
				c.After -= d.formats.ImageBytes(cold[i].key)
				progress = true
				if report != nil {
					report(c.Before-c.After, c.Before-targetBytes)
				}
			}
		}
		if !progress {
			if err != nil {
				errs = append(errs, err)
			}
			break
		}
	}
	c.Left = joinFew(errs)
	return nil
}

// newerVersion returns block.ErrVersion if a file has another format version.
func newerVersion(d dirfs.Dir, name string) error {
	f, err := d.Open(name, os.O_RDONLY)
	if err != nil {
		return nil // the file is removed without reading it
	}
	if _, err = readHeader(f); !errors.Is(err, block.ErrVersion) {
		err = nil
	}
	_ = f.Close() // it was only read
	return err
}

// evict removes a block, unless it was used or pinned since the search, and records that. It
// reports whether the block is gone.
func (d *existing) evict(c *candidate, pins *blockdir.Pins, removals *blockdir.Removals) (bool, error) {
	name := blockName(c.key)
	info, err := d.Stat(name)
	if err == nil && !info.Modified.Equal(c.modified) {
		return false, nil
	}
	if err == nil {
		if _, err = pins.Refresh(d); errors.Is(err, errdefs.ErrCorrupt) {
			err = nil
		}
		if pins.Has(c.key) {
			return false, nil
		}
	}
	if err == nil {
		err = newerVersion(d, name)
	}
	if err == nil {
		err = d.Remove(name)
	}
	if err == nil {
		removals.Add(time.Now(), c.key, tier.CauseGC)
	}
	if err != nil && !blockdir.Gone(err) {
		return false, fmt.Errorf("remove cold block %s: %w", c.key, err)
	}
	return true, nil
}
