package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/owner"
)

// Verify verifies every block of the directory and finds files that do not belong there. It changes
// nothing, so it works on a read-only mount. Files that cannot be examined are findings (Unjudged).
// Processes may use the directory during the call; blocks that are added or removed meanwhile may
// or may not be checked. progress may be nil. It is called after each block with the totals so far.
// Findings are not an error. Verify returns ErrNotFound if there is neither a marker nor a block.
func Verify(ctx context.Context, dir string, progress func(blocks, bytes int64)) (Report, error) {
	return verify(ctx, dirfs.OS(), dir, progress)
}

func verify(ctx context.Context, fsys dirfs.FS, path string, progress func(blocks, bytes int64)) (_ Report, err error) {
	v, err := openVerifier(ctx, fsys, path)
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	v.progress = progress
	err = v.run(ctx)
	return v.report, err
}

type verifier struct {
	dirfs.Dir
	root     string
	formats  block.Formats // of the marker, or of all headers; empty if they disagree
	progress func(blocks, bytes int64)
	report   Report
	buf      []byte
	// namesOnly skips the contents of blocks.
	namesOnly bool

	// for Repair
	removals  *blockdir.Removals
	markerBad bool
	damaged   []damagedBlock
	misplaced []misplacedBlock
}

type damagedBlock struct {
	key   block.Key
	info  dirfs.Info
	found int // index of the finding
}

type misplacedBlock struct {
	folder byte
	key    block.Key
	found  int // index of the finding
}

func openVerifier(ctx context.Context, fsys dirfs.FS, path string) (_ *verifier, err error) {
	v := &verifier{root: filepath.Clean(path), report: Report{Sums: make(map[block.SumAlgo]int64)}}
	if v.Dir, err = fsys.OpenDir(v.root); err == nil {
		if err = v.readFormat(ctx); err == nil {
			return v, nil
		}
		err = errors.Join(err, v.Close())
	} else if blockdir.Gone(err) {
		err = fmt.Errorf("%w: %w", errdefs.ErrNotFound, err)
	}
	return nil, fmt.Errorf("verify directory %s: %w", v.root, err)
}

// readFormat reads the marker, or else the headers of the blocks.
func (v *verifier) readFormat(ctx context.Context) error {
	m, err := blockdir.ReadMarker(v, blockdir.Files)
	if err == nil {
		v.setFormats(m)
		return nil
	}
	if errors.Is(err, errdefs.ErrMismatch) {
		return err // it belongs to another version, and may be intact
	}
	v.markerBad = true
	n, m, herr := v.headers(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	switch {
	case blockdir.Gone(err) && n == 0:
		return fmt.Errorf("not a directory of blocks: %w: %w", errdefs.ErrNotFound, err)
	case blockdir.Gone(err):
		v.found(blockdir.MarkerName, Lost, "the directory has blocks")
	case errors.Is(err, errdefs.ErrCorrupt):
		v.found(blockdir.MarkerName, Damaged, err.Error())
	default:
		v.found(blockdir.MarkerName, Unjudged, err.Error())
		v.markerBad = false // the marker may be intact
	}
	if herr != nil {
		v.found(".", Unjudged, "the identity of the blocks: "+herr.Error())
	} else if n > 0 {
		v.setFormats(m)
	}
	return nil
}

func (v *verifier) setFormats(m Marker) {
	v.report.Marker, v.formats = m, m.Formats()
}

// headers returns the number of blocks with an intact header, and a marker for them. Blocks of
// several identities must have keys of several page groups.
func (v *verifier) headers(ctx context.Context) (n int, m Marker, err error) {
	var formats block.Formats
	var all []block.Key // of intact headers
	disagree := func(f, with block.Format) error {
		return fmt.Errorf("their headers do not agree: identity %s with %s, and %s with %s: %w",
			with.Identity, with.Layout, f.Identity, f.Layout, errdefs.ErrMismatch)
	}
	for b := range buckets {
		keys, _, err := listBucket(v, byte(b))
		if err != nil {
			continue // blocks reports the error
		}
		for _, key := range keys {
			if ctx.Err() != nil {
				return n, m, context.Cause(ctx)
			}
			f, err := v.header(key)
			if err != nil {
				continue
			}
			n++
			all = append(all, key)
			at := slices.IndexFunc(formats, func(o block.Format) bool { return o.Identity == f.Identity })
			switch {
			case at >= 0 && !formats[at].Layout.Equal(f.Layout):
				return n, m, disagree(f, formats[at])
			case at < 0 && len(formats) == block.MaxGroups:
				return n, m, disagree(f, formats[0])
			case at < 0:
				formats = append(formats, f)
			}
		}
	}
	if n == 0 {
		return n, m, nil
	}
	m = blockdir.NewMarker(blockdir.Files, formats, nil)
	tagged := 0
	for _, key := range all {
		if formats.Tagged(key) {
			tagged++
		}
	}
	switch {
	case len(formats) > 1 && (tagged < n || formats.Validate() != nil):
		return n, m, disagree(formats[1], formats[0])
	case len(formats) == 1 && tagged == n:
		return n, m, fmt.Errorf("all blocks belong to one of several page groups, identity %s: %w", formats[0].Identity, errdefs.ErrMismatch)
	}
	return n, m, nil
}

// header returns the format in a block's header. The header must be intact and have the block's
// key.
func (v *verifier) header(key block.Key) (f block.Format, err error) {
	h, err := v.Open(blockName(key), os.O_RDONLY)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	d, err := readHeader(h)
	if err != nil {
		return f, err
	}
	if d.Key != key {
		return f, fmt.Errorf("it is block %s: %w", d.Key, errdefs.ErrMismatch)
	}
	layout, err := d.Layout()
	return block.Format{Layout: layout, Identity: d.Identity}, err
}

// readHeader reads the header of an image of any length.
func readHeader(f dirfs.File) (block.Header, error) {
	start := make([]byte, block.AlignBytes)
	if _, err := f.ReadAt(start, 0); err != nil {
		return block.Header{}, err
	}
	n, err := block.HeaderLen(start)
	if err != nil {
		return block.Header{}, err
	}
	if n > int64(len(start)) {
		start = make([]byte, n)
		if _, err := f.ReadAt(start, 0); err != nil {
			return block.Header{}, err
		}
	}
	return block.DecodeHeader(start)
}

func (v *verifier) run(ctx context.Context) error {
	for _, step := range []func(context.Context) error{v.top, v.temporary, v.blocks} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("verify directory %s: %w", v.root, err)
		}
	}
	blockdir.NoteByHand(v, v.root, v.report.Findings)
	return nil
}

func (v *verifier) found(name string, p Problem, detail string) {
	v.foundBlock(block.Key{}, name, p, detail)
}

func (v *verifier) foundBlock(key block.Key, name string, p Problem, detail string) {
	v.report.Add(v.root, key, name, p, detail)
}

// unjudged adds a finding for a file that could not be examined, unless the file no longer exists.
func (v *verifier) unjudged(name string, err error) {
	if err != nil && !blockdir.Gone(err) {
		v.found(name, Unjudged, err.Error())
	}
}

// top finds files directly in the directory that do not belong there.
func (v *verifier) top(context.Context) error {
	all, err := v.ReadDir(".")
	v.unjudged(".", err)
	for _, n := range all {
		_, folder := parseBucket(n)
		if n == blockdir.LockName {
			if bad := blockdir.BadLock(v); bad != "" {
				v.found(n, Damaged, bad)
			}
		}
		switch n {
		case blockdir.MarkerName, blockdir.LockName, blockdir.RecordName, blockdir.RecordTemp, blockdir.PinsTemp,
			blockdir.RemovalsName, blockdir.RemovalsOld, "lost+found":
			continue
		case blockdir.PinsName:
			if _, err := blockdir.ReadPins(v); errors.Is(err, errdefs.ErrCorrupt) {
				v.found(n, Damaged, err.Error())
			} else {
				v.unjudged(n, err)
			}
			continue
		case tmpName, blockdir.Quarantine:
			folder = true
		}
		if !folder && strings.HasPrefix(n, blockdir.MarkerTemp) {
			continue // left by a process that ended in WriteMarker
		}
		if !folder {
			v.found(n, Foreign, "not created by kvlane")
			continue
		}
		info, err := v.Stat(n)
		v.unjudged(n, err)
		if err == nil && !info.Type.IsDir() {
			v.found(n, Foreign, "a "+info.Kind()+" where a folder should be")
		}
	}
	bad, err := blockdir.Quarantined(v)
	v.report.Quarantined = len(bad)
	v.unjudged(blockdir.Quarantine, err)
	return nil
}

// unlessFolder is unjudged for a folder. If a file has the folder's name, top has already reported
// that.
func (v *verifier) unlessFolder(name string, err error) {
	if info, serr := v.Stat(name); serr == nil && !info.Type.IsDir() {
		return
	}
	v.unjudged(name, err)
}

// temporary finds the files of ended sessions. It needs the lock file. If that is damaged, top has
// already reported it.
func (v *verifier) temporary(ctx context.Context) error {
	if blockdir.BadLock(v) != "" {
		return nil
	}
	err := blockdir.WithLock(ctx, clockwork.NewRealClock(), v, func() error {
		sessions, err := blockdir.Names(v, tmpName)
		v.unlessFolder(tmpName, err)
		for _, s := range sessions {
			v.session(tmpName + "/" + s)
		}
		return nil
	})
	v.unjudged(tmpName, err)
	return nil
}

func (v *verifier) session(path string) {
	info, err := v.Stat(path)
	if err == nil && !info.Type.IsDir() {
		v.found(path, Foreign, "not created by kvlane")
		return
	}
	var lock dirfs.File
	live := false
	if err == nil {
		lock, live, err = probeSession(v, path)
	}
	if live {
		v.report.LiveSessions++
	}
	if lock != nil {
		err = errors.Join(err, lock.Close())
	}
	v.unjudged(path, err)
	if live || err != nil {
		return
	}
	files, err := blockdir.Names(v, path)
	v.unjudged(path, err)
	for _, f := range files {
		name := path + "/" + f
		switch info, err := v.Stat(name); {
		case f == sessionLock && (err != nil || info.Regular()), f == owner.Name && info.Type == fs.ModeSocket:
		case err != nil:
			v.unjudged(name, err)
		case !info.Regular():
			v.found(name, Foreign, "a "+info.Kind()+" among temporary files")
		default:
			v.found(name, Leftover, "its process has died; the next process that opens the directory removes it")
		}
	}
}

func (v *verifier) blocks(ctx context.Context) error {
	for b := range buckets {
		keys, others, err := listBucket(v, byte(b))
		v.unlessFolder(bucketName(byte(b)), err)
		for _, key := range keys {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if !v.namesOnly {
				v.block(key)
			}
		}
		for _, n := range others {
			name := bucketName(byte(b)) + "/" + n
			if key, err := block.ParseKey(n); err == nil {
				v.misplaced = append(v.misplaced, misplacedBlock{byte(b), key, len(v.report.Findings)})
				v.foundBlock(key, name, Misplaced, "its key belongs into folder "+n[:2])
			} else {
				v.found(name, Foreign, "its name is not a key")
			}
		}
	}
	return nil
}

// block verifies one block.
func (v *verifier) block(key block.Key) {
	name := blockName(key)
	info, bad, err := v.check(name, key)
	if blockdir.Gone(err) {
		return
	}
	if err != nil {
		v.unjudged(name, err)
		return
	}
	if bad != nil && !errors.Is(bad, block.ErrVersion) {
		v.damaged = append(v.damaged, damagedBlock{key, info, len(v.report.Findings)})
		v.foundBlock(key, name, Damaged, bad.Error())
	} else if bad != nil {
		v.foundBlock(key, name, Newer, bad.Error())
	}
	v.report.Blocks++
	v.report.Bytes += info.Bytes
	if v.progress != nil {
		v.progress(v.report.Blocks, v.report.Bytes)
	}
}

// check returns bad if a file is not an intact block, and err if the file could not be examined.
func (v *verifier) check(name string, key block.Key) (info dirfs.Info, bad, err error) {
	if info, err = v.Stat(name); err != nil {
		return info, nil, err
	}
	if !info.Regular() {
		return info, fmt.Errorf("it is a %s: %w", info.Kind(), errdefs.ErrCorrupt), nil
	}
	f, err := v.Open(name, os.O_RDONLY)
	if err != nil {
		return info, nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if info, err = f.Stat(); err != nil {
		return info, nil, err
	}
	var format block.Format
	if len(v.formats) > 0 {
		format, err = v.formats.Of(key)
	} else {
		format, err = v.header(key)
	}
	if err != nil {
		return info, err, nil
	}
	bad, err = v.content(f, info, format, key)
	return info, bad, err
}

func (v *verifier) content(f dirfs.File, info dirfs.Info, format block.Format, key block.Key) (bad, err error) {
	image := format.Layout.ImageBytes()
	if info.Bytes != image {
		if _, err := readHeader(f); errors.Is(err, block.ErrVersion) {
			return err, nil
		}
		return fmt.Errorf("the file has %d bytes, an image %d: %w", info.Bytes, image, errdefs.ErrCorrupt), nil
	}
	if int64(len(v.buf)) != image {
		v.buf = make([]byte, image)
	}
	n, err := io.ReadFull(io.NewSectionReader(f, 0, image), v.buf)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the file ends after %d of %d bytes: %w", n, image, errdefs.ErrCorrupt), nil
	}
	if err != nil {
		return nil, err
	}
	if bad := format.Verify(v.buf, key); bad != nil {
		return bad, nil
	}
	h, err := format.Verified(v.buf)
	v.report.Sums[h.SumAlgo]++
	return nil, err
}
