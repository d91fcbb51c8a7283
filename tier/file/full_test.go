package file_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
)

// If the disk is full, the tier evicts blocks below its bound, and its statistics report that.
func TestFullDiskMakesSpaceWithinTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := bounded(t, 100)
		tr := open(t, c)
		f.Forbid(diskOf(t, c.Dirs[0], 20*c.Formats[0].Layout.ImageBytes()))
		put(t, tr, c.Formats[0], keys(0, 60)...)
		st := tr.Stats()
		if st.Puts != 60 || st.Evictions < 40 || st.Errors == 0 || !errors.Is(st.Paused, errdefs.ErrNoSpace) {
			t.Errorf("%+v", st)
		}
		// As long as the disk is full, the statistics report the pause.
		for minute := range 5 {
			time.Sleep(time.Minute)
			put(t, tr, c.Formats[0], keys(60+minute, 61+minute)...)
			if st := tr.Stats(); st.Paused == nil {
				t.Fatalf("minute %d: %+v", minute, st)
			}
		}
		f.Forbid(nil)
		time.Sleep(time.Minute)
		put(t, tr, c.Formats[0], keys(100, 110)...)
		if after := tr.Stats(); after.Paused != nil || after.Blocks < st.Blocks+8 {
			t.Errorf("%+v", after)
		}
	})
}

// If other programs fill the disk, a bounded tier evicts a sixteenth of its blocks, or at least
// two. Then it pauses writes, as a tier without a bound does.
func TestDiskFilledByOthersCostsFewBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := bounded(t, 100)
		tr := open(t, c)
		put(t, tr, c.Formats[0], keys(0, 64)...)
		var full atomic.Bool
		full.Store(true)
		f.Forbid(func(op, _ string) error {
			if op == "write" && full.Load() {
				return syscall.ENOSPC
			}
			return nil
		})
		for i, key := range keys(100, 400) {
			if err := tr.Put(t.Context(), key, image(t, c.Formats[0], key)); !errors.Is(err, errdefs.ErrNoSpace) {
				t.Fatalf("write %d: %v", i, err)
			}
			time.Sleep(time.Second)
		}
		if st := tr.Stats(); st.Blocks < 64*7/8 || st.Errors < 300 || !errors.Is(st.Paused, syscall.ENOSPC) {
			t.Errorf("%+v", st)
		}
		full.Store(false)
		time.Sleep(time.Minute)
		put(t, tr, c.Formats[0], keys(400, 420)...)
		if st := tr.Stats(); st.Paused != nil || st.Blocks < 75 {
			t.Errorf("%+v", st)
		}
	})
}

// diskOf returns a Veto that fails writes while the files in dir have more than the given bytes.
func diskOf(t *testing.T, dir string, bytes int64) faultfs.Veto {
	return func(op, _ string) error {
		if op != "write" {
			return nil
		}
		var used int64
		err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() {
				if info, ierr := e.Info(); ierr == nil {
					used += info.Size()
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if used >= bytes {
			return syscall.ENOSPC
		}
		return nil
	}
}
