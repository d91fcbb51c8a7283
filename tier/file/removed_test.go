package file_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// If a directory is removed while it is open, the next Put creates it again. Its blocks are found
// after reopening, and the assignment of keys to directories does not change.
func TestDirectoryRemovedWhileOpen(t *testing.T) {
	for _, policy := range []file.FsyncPolicy{file.FsyncNever, file.FsyncFile} {
		c := config(t)
		c.Dirs, c.Fsync = append(c.Dirs, t.TempDir()), policy
		tr, err := file.Open(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		all := keys(0, 40)
		put(t, tr, c.Formats[0], all[:20]...)
		if err := os.RemoveAll(c.Dirs[0]); err != nil {
			t.Fatal(err)
		}
		put(t, tr, c.Formats[0], all...)
		for _, key := range all {
			if err := get(t, tr, c.Formats[0], key); err != nil {
				t.Error(err)
			}
		}
		if st := tr.Stats(); st.Errors != 1 {
			t.Errorf("%d errors are counted, want 1", st.Errors)
		}
		if err := tr.Close(t.Context()); err != nil {
			t.Error(err)
		}
		next := open(t, c)
		for _, key := range all {
			if err := get(t, next, c.Formats[0], key); err != nil {
				t.Errorf("%s: after opening again: %v", policy, err)
			}
		}
		for _, dir := range c.Dirs {
			if r, err := file.Verify(t.Context(), dir, nil); err != nil || !r.Clean() || r.Blocks == 0 {
				t.Errorf("%+v, %v", r, err)
			}
		}
	}
}

// If only the contents of the directory are removed, the next Put writes the marker again.
func TestContentsRemovedWhileOpen(t *testing.T) {
	c := config(t)
	tr := open(t, c)
	all := keys(0, 10)
	put(t, tr, c.Formats[0], all...)
	in, err := os.ReadDir(c.Dirs[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range in {
		if err := os.RemoveAll(filepath.Join(c.Dirs[0], e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	put(t, tr, c.Formats[0], all...)
	if r, err := file.Verify(t.Context(), c.Dirs[0], nil); err != nil || !r.Clean() || r.Blocks != 10 {
		t.Errorf("%+v, %v", r, err)
	}
}

// Within a minute a tier replaces a removed marker. A read-only tier finds the blocks in a
// directory that was recreated.
func TestRemovedDirectoryIsFoundOut(t *testing.T) {
	c := config(t)
	all := keys(0, 3)
	synctest.Test(t, func(t *testing.T) {
		tr := open(t, c)
		put(t, tr, c.Formats[0], all[0])
		ro := c
		ro.ReadOnly = true
		reader := open(t, ro)
		marker := filepath.Join(c.Dirs[0], "kvlane.json")
		if err := os.Remove(marker); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		if _, err := os.Stat(marker); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(c.Dirs[0]); err != nil {
			t.Fatal(err)
		}
		put(t, tr, c.Formats[0], all[1])
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		if s := state(t, reader, all[1]); s != tier.Ready {
			t.Errorf("the tier that only reads finds the block %s", s)
		}
		if err := get(t, reader, c.Formats[0], all[1]); err != nil {
			t.Error(err)
		}
	})
}

// One process opens a directory while another removes it. The first creates it again, and never
// uses the removed directory.
func TestOpenWhileTheDirectoryIsRemoved(t *testing.T) {
	c := config(t)
	first, err := file.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	ffs := faultfs.New(dirfs.OS(), nil, nil)
	var removed atomic.Bool
	ffs.Forbid(func(op, path string) error {
		// The marker has been read, and the lock is about to be taken.
		if op == "open" && strings.HasSuffix(path, blockdir.LockName) && removed.CompareAndSwap(false, true) {
			return os.RemoveAll(c.Dirs[0])
		}
		return nil
	})
	c.FS = ffs
	tr := open(t, c)
	put(t, tr, c.Formats[0], tiertest.Key(1))
	if r, err := file.Verify(t.Context(), c.Dirs[0], nil); err != nil || !r.Clean() || r.Blocks != 1 || !removed.Load() {
		t.Errorf("%+v, %v", r, err)
	}
}

// If a lock file is removed during a wait for its lock, the waiter opens the new lock file by name
// and locks that.
func TestLockOfARemovedFile(t *testing.T) {
	dir := t.TempDir()
	d, err := dirfs.OS().OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	ffs := faultfs.New(dirfs.OS(), nil, nil)
	waiting, err := ffs.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	ffs.Forbid(func(op, _ string) error {
		// The lock file is open. Remove it now, as its owner would; another process then creates a
		// new one.
		if op == "lock" {
			return os.Remove(filepath.Join(dir, blockdir.LockName))
		}
		return nil
	})
	locked, err := blockdir.TryLock(waiting, func() error { t.Error("locked"); return nil })
	if locked || err != nil {
		t.Errorf("locked %v, %v", locked, err)
	}
	for _, d := range []dirfs.Dir{d, waiting} {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A directory with blocks but without a marker is refused. The error names the repair command.
func TestLostMarkerNamesTheRepair(t *testing.T) {
	c := config(t)
	tr, err := file.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	put(t, tr, c.Formats[0], tiertest.Key(1))
	if err := tr.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(c.Dirs[0], "kvlane.json")); err != nil {
		t.Fatal(err)
	}
	_, err = file.Open(t.Context(), c)
	if err == nil || !strings.Contains(err.Error(), "kvlane store verify --repair") {
		t.Errorf("%v", err)
	}
	if r, err := file.Repair(t.Context(), c.Dirs[0], nil); err != nil || !r.MarkerMade {
		t.Errorf("%+v, %v", r, err)
	}
	if err := get(t, open(t, c), c.Formats[0], tiertest.Key(1)); err != nil {
		t.Error(err)
	}
}
