package log_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/tiertest"
)

const (
	groupOfOne  = 28 << 10 // a block with the header of its group
	lowerBlocks = 90       // number of blocks that fit the lower bound
)

// fill puts up to most blocks into a log without a bound, until the disk is full, and closes the
// log.
func fill(t *testing.T, c log.Config, most int) (n int) {
	t.Helper()
	tr, err := log.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for ; n < most; n++ {
		key := tiertest.Key(n)
		if err := tr.Put(t.Context(), key, image(t, c.Formats[0], key)); errors.Is(err, errdefs.ErrNoSpace) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	// The disk has no space for a checkpoint.
	if err := tr.Close(t.Context()); err != nil && !errors.Is(err, errdefs.ErrNoSpace) {
		t.Fatal(err)
	}
	return n
}

// keepsAllThatFit opens the log with a bound. It checks that the newest blocks that fit stay,
// together with blocks that are put meanwhile.
func keepsAllThatFit(t *testing.T, c log.Config, n int) {
	t.Helper()
	c.SegmentBytes, c.MaxBytes = 0, lowerBlocks*groupOfOne
	tr := open(t, c)
	if log.Used(tr) <= c.MaxBytes {
		t.Fatalf("%d bytes are used after opening, the bound is %d", log.Used(tr), c.MaxBytes)
	}
	fresh := keys(10_000, 10_010)
	put(t, tr, c.Formats[0], fresh...)
	for timeout := time.After(testkit.Patience()); log.Used(tr) > c.MaxBytes; {
		select {
		case <-timeout:
			t.Fatalf("%d bytes are used, the bound is %d: %+v", log.Used(tr), c.MaxBytes, tr.Stats())
		case <-time.After(time.Millisecond):
		}
	}
	const least = lowerBlocks * 2 / 3
	check := func(tr *log.Tier) {
		t.Helper()
		old := ready(t, tr, keys(0, n))
		for _, key := range append(fresh, keys(n+len(fresh)-least, n)...) {
			if err := get(t, tr, c.Formats[0], key); err != nil {
				t.Fatalf("%d of %d old blocks are left; a new one: %v", old, n, err)
			}
		}
		if old < least-len(fresh) {
			t.Errorf("%d of %d old blocks are left", old, n)
		}
		if st := tr.Stats(); st.Corrupt != 0 {
			t.Errorf("%+v", st)
		}
	}
	check(tr)
	closeTier(t, tr)
	for _, how := range []string{"checkpoint", "segments"} {
		if how == "segments" {
			if err := os.Remove(filepath.Join(c.Dir, "index")); err != nil {
				t.Fatal(err)
			}
		}
		tr = open(t, c)
		if used := log.Used(tr); used > c.MaxBytes {
			t.Errorf("%s: %d bytes are used, the bound is %d", how, used, c.MaxBytes)
		}
		check(tr)
		closeTier(t, tr)
		if r, err := log.Verify(t.Context(), c.Dir, nil); err != nil || len(r.Findings) > 0 {
			t.Errorf("%s: %v, %+v", how, err, r.Findings)
		}
	}
}

// A log on a full disk was opened with a lower bound. It evicted the blocks that it could not move,
// and then new ones.
func TestDefectLowerBoundOnAFullDiskDropsBlocks(t *testing.T) {
	c := config(t)
	c.SegmentBytes = 8 << 20
	n := fill(t, c, 200)
	files := faultfs.New(dirfs.OS(), nil, nil)
	limit := spaceOf(t, c.Dir)
	files.Forbid(func(op, _ string) error {
		if (op == "write" || op == "allocate") && spaceOf(t, c.Dir) >= limit {
			return syscall.ENOSPC
		}
		return nil
	})
	c.FS = files
	keepsAllThatFit(t, c, n)
}

// The same test on a full file system.
func TestDefectLowerBoundOnAFullFileSystem(t *testing.T) {
	c := config(t)
	c.SegmentBytes = 4 << 20 // segments become shorter when the disk is nearly full
	mount := c.Dir
	if err := unix.Mount("none", mount, "tmpfs", 0, "size=6m"); err != nil {
		testkit.Skip(t, "mount", "this process cannot mount a file system: "+err.Error())
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mount, 0); err != nil {
			t.Error(err)
		}
	})
	c.Dir = filepath.Join(mount, "log")
	keepsAllThatFit(t, c, fill(t, c, 1000))
}

// On a file system without holes the long segment is removed as a whole, and the log continues to
// work.
func TestLowerBoundWithoutHoles(t *testing.T) {
	c := config(t)
	c.SegmentBytes = 8 << 20
	fill(t, c, 200)
	files := faultfs.New(dirfs.OS(), nil, nil)
	files.Forbid(func(op, _ string) error {
		if op == "punch" {
			return errdefs.ErrNotSupported
		}
		return nil
	})
	c.FS, c.SegmentBytes, c.MaxBytes = files, 0, lowerBlocks*groupOfOne
	tr := open(t, c)
	fresh := keys(10_000, 10_010)
	put(t, tr, c.Formats[0], fresh...)
	if n := ready(t, tr, fresh); n != len(fresh) || log.Used(tr) > c.MaxBytes {
		t.Errorf("%d of %d new blocks are left; %d bytes are used", n, len(fresh), log.Used(tr))
	}
}

// spaceOf returns the disk space of the files in a directory.
func spaceOf(t *testing.T, dir string) (n int64) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, f.Name()), &st); err == nil {
			n += st.Blocks * 512
		}
	}
	return n
}

// While a long segment cannot be shortened, newer segments must stay.
func TestLowerBoundWhileHolesFail(t *testing.T) {
	c := config(t)
	c.SegmentBytes = 8 << 20
	fill(t, c, 200)
	c.SegmentBytes = segmentBytes
	tr, newer := open(t, c), keys(10_000, 10_020)
	put(t, tr, c.Formats[0], newer...)
	closeTier(t, tr)

	files := faultfs.New(dirfs.OS(), nil, nil)
	failed := make(chan struct{}, 4) // one value for each failure
	files.Forbid(func(op, _ string) error {
		if op == "punch" {
			select {
			case failed <- struct{}{}:
				return syscall.EIO
			default:
			}
		}
		return nil
	})
	c.FS, c.SegmentBytes, c.MaxBytes = files, 0, lowerBlocks*groupOfOne
	tr = open(t, c)
	put(t, tr, c.Formats[0], keys(20_000, 20_010)...) // when there is space
	if len(failed) < cap(failed) {
		t.Errorf("%d attempts have failed", len(failed))
	}
	if n := ready(t, tr, newer); n != len(newer) {
		t.Errorf("%d of %d blocks in newer segments are left", n, len(newer))
	}
	if n := ready(t, tr, keys(0, 200)); n < lowerBlocks/3 {
		t.Errorf("%d old blocks are left", n)
	}
}
