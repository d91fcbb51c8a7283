package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
)

// Problem is what is wrong with a file.
type Problem string

// The problems.
const (
	Damaged   Problem = "damaged"   // its size, identity, key or a checksum is wrong
	Misplaced Problem = "misplaced" // a block in another folder than its key's
	Leftover  Problem = "leftover"  // a temporary file of a process that has died
	Foreign   Problem = "foreign"   // no file of a block directory
)

// Finding is a file with a problem.
type Finding struct {
	Path    string
	Problem Problem
	Detail  string
}

// Report is what Verify found.
type Report struct {
	Marker       Marker
	Blocks       int64 // that were checked, the damaged ones included
	Bytes        int64 // of them
	LiveSessions int   // of processes that have the directory open
	Quarantined  int   // files set aside earlier; not a finding: they are never read
	Findings     []Finding
	// Sums counts the sound blocks by the algorithm of their checksums. A directory may hold several.
	Sums map[block.SumAlgo]int64
}

// Clean says whether nothing was found.
func (r *Report) Clean() bool { return len(r.Findings) == 0 }

// Verify checks every byte of the directory's blocks and looks for files that should not be there. It changes nothing.
// Others may use the directory meanwhile; blocks that come or go are checked or not. progress may be nil; it is called
// after each block, with the numbers so far. Findings are no error.
func Verify(ctx context.Context, dir string, progress func(blocks, bytes int64)) (Report, error) {
	return verify(ctx, OS(), dir, progress)
}

func verify(ctx context.Context, fsys FS, dir string, progress func(blocks, bytes int64)) (Report, error) {
	root, m, err := openExisting(fsys, dir)
	if err != nil {
		return Report{}, fmt.Errorf("verify %w", err)
	}
	v := verifier{
		fs: fsys, root: root, progress: progress,
		format: block.Format{Layout: m.Layout, Identity: m.Digest}, report: Report{Marker: m, Sums: map[block.SumAlgo]int64{}},
	}
	for _, step := range []func(context.Context) error{v.top, v.temporary, v.blocks} {
		if err := step(ctx); err != nil {
			return v.report, fmt.Errorf("verify directory %s: %w", root, err)
		}
	}
	return v.report, nil
}

type verifier struct {
	fs       FS
	root     string
	format   block.Format
	progress func(blocks, bytes int64)
	report   Report
	buf      []byte
}

func (v *verifier) found(path string, p Problem, detail string) {
	v.report.Findings = append(v.report.Findings, Finding{Path: path, Problem: p, Detail: detail})
}

// top looks for what does not belong into the directory itself.
func (v *verifier) top(context.Context) error {
	all, err := v.fs.ReadDir(v.root)
	if err != nil {
		return err
	}
	for _, n := range all {
		switch n {
		case markerName, markerTemp, lockName, tmpName, quarantine, "lost+found":
			continue
		}
		if _, ok := parseBucket(n); !ok {
			v.found(v.root+"/"+n, Foreign, "not made by kvlane")
		}
	}
	bad, err := names(v.fs, v.root+"/"+quarantine)
	v.report.Quarantined = len(bad)
	return err
}

// temporary looks for the files of sessions whose owners have died.
func (v *verifier) temporary(context.Context) error {
	return withLock(v.fs, v.root, func() error {
		sessions, err := names(v.fs, v.root+"/"+tmpName)
		if err != nil {
			return err
		}
		for _, s := range sessions {
			if err := v.session(v.root + "/" + tmpName + "/" + s); err != nil {
				return err
			}
		}
		return nil
	})
}

func (v *verifier) session(path string) error {
	lock, live, err := probeSession(v.fs, path)
	if err != nil {
		return err
	}
	if live {
		v.report.LiveSessions++
		return nil
	}
	if lock != nil {
		if err := lock.Close(); err != nil {
			return err
		}
	}
	files, err := names(v.fs, path)
	if errors.Is(err, unix.ENOTDIR) {
		v.found(path, Foreign, "not made by kvlane")
		return nil
	}
	for _, f := range files {
		if f != sessionLock {
			v.found(path+"/"+f, Leftover, "its process has died; the next that opens the directory removes it")
		}
	}
	return err
}

func (v *verifier) blocks(ctx context.Context) error {
	for b := range buckets {
		keys, others, err := listBucket(v.fs, v.root, byte(b))
		if err != nil {
			return err
		}
		for _, key := range keys {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := v.block(key); err != nil {
				return err
			}
		}
		for _, n := range others {
			path := bucketPath(v.root, byte(b)) + "/" + n
			if _, err := block.ParseKey(n); err == nil {
				v.found(path, Misplaced, "its key belongs into folder "+n[:2])
			} else {
				v.found(path, Foreign, "its name is no key")
			}
		}
	}
	return nil
}

// block checks one block; an error is one of reading, not of what was read.
func (v *verifier) block(key block.Key) (err error) {
	path := blockPath(v.root, key)
	f, err := v.fs.Open(path, os.O_RDONLY)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	bad, err := v.check(f, info, key)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if bad != nil {
		v.found(path, Damaged, bad.Error())
	}
	v.report.Blocks++
	v.report.Bytes += info.Bytes
	if v.progress != nil {
		v.progress(v.report.Blocks, v.report.Bytes)
	}
	return nil
}

// check returns what is wrong with the image, and apart from that why it could not be read.
func (v *verifier) check(f File, info Info, key block.Key) (bad, err error) {
	image := v.format.Layout.ImageBytes()
	if info.Bytes != image {
		return fmt.Errorf("the file has %d bytes, an image %d: %w", info.Bytes, image, errdefs.ErrCorrupt), nil
	}
	if v.buf == nil {
		v.buf = make([]byte, image)
	}
	n, err := io.ReadFull(io.NewSectionReader(f, 0, image), v.buf)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the file ends after %d of %d bytes: %w", n, image, errdefs.ErrCorrupt), nil
	}
	if err != nil {
		return nil, err
	}
	if bad := v.format.Verify(v.buf, key); bad != nil {
		return bad, nil
	}
	h, err := v.format.Verified(v.buf)
	v.report.Sums[h.SumAlgo]++
	return nil, err
}
