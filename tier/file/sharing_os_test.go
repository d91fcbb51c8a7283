package file_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// tenantConfig returns the configuration of a tenant, whose folder below root depends on its
// number.
func tenantConfig(t *testing.T, root string, tenant int, blocks int64) file.Config {
	t.Helper()
	f := tiertest.NewFormat(t)
	f.Identity[5] = byte(tenant)
	return file.Config{
		Dirs: []string{filepath.Join(root, folderOf(tenant))}, SharedBound: true, Formats: block.Formats{f},
		MaxBytes: blocks * f.Layout.ImageBytes(),
	}
}

// makeIdleFolder creates a tenant's folder with blocks, and closes it.
func makeIdleFolder(t *testing.T, c file.Config, blocks int) {
	t.Helper()
	tr, err := file.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	put(t, tr, c.Formats[0], keys(0, blocks)...)
	if err := tr.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A tenant opens its folder while another process removes some or all of its blocks. Open waits for
// the lock, and then finds a sound directory.
func TestOpenWhileTheFolderIsReclaimed(t *testing.T) {
	for name, bound := range map[string]int64{"some": 40, "all": 8} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			old := tenantConfig(t, root, 0, 0)
			makeIdleFolder(t, old, 30)
			opening := faultfs.New(dirfs.OS(), nil, nil)
			waits := make(chan struct{})
			var tried, began atomic.Bool
			opening.Forbid(func(op, path string) error {
				if op == "lock" && strings.HasSuffix(path, blockdir.LockName) && tried.CompareAndSwap(false, true) {
					close(waits)
				}
				return nil
			})
			type result struct {
				tr  *file.Tier
				err error
			}
			opened := make(chan result, 1)
			reclaiming := faultfs.New(dirfs.OS(), nil, nil)
			reclaiming.Forbid(func(op, path string) error {
				if op == "remove" && strings.Contains(path, folderOf(0)) && len(filepath.Base(path)) == 64 && began.CompareAndSwap(false, true) {
					c := old
					c.FS = opening
					go func() {
						tr, err := file.Open(t.Context(), c)
						opened <- result{tr, err}
					}()
					<-waits // Open waits for the lock, which this process holds
				}
				return nil
			})
			c := tenantConfig(t, root, 1, bound)
			c.FS = reclaiming
			tr := open(t, c)
			put(t, tr, c.Formats[0], keys(100, 100+int(bound))...)
			got := <-opened
			if got.err != nil {
				t.Fatal(got.err)
			}
			defer func() {
				if err := got.tr.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}()
			put(t, got.tr, old.Formats[0], keys(0, 30)...)
			for _, key := range keys(0, 30) {
				if err := get(t, got.tr, old.Formats[0], key); err != nil {
					t.Error(err)
				}
			}
			if r, err := file.Verify(t.Context(), filepath.Join(root, folderOf(0)), nil); err != nil || !r.Clean() || r.Blocks != 30 {
				t.Errorf("%+v, %v", r, err)
			}
			if tr.Stats().Reclaimed == 0 {
				t.Error("no folder was reclaimed")
			}
		})
	}
}

// A symbolic link to another folder of blocks is neither counted nor followed.
func TestLinkedFolderIsLeftAlone(t *testing.T) {
	root, elsewhere := t.TempDir(), t.TempDir()
	old := tenantConfig(t, elsewhere, 0, 0)
	makeIdleFolder(t, old, 30)
	if err := os.Symlink(filepath.Join(elsewhere, folderOf(0)), filepath.Join(root, folderOf(0))); err != nil {
		t.Fatal(err)
	}
	c := tenantConfig(t, root, 1, 8)
	tr := open(t, c)
	put(t, tr, c.Formats[0], keys(0, 20)...)
	if st := tr.Stats(); st.Reclaimed != 0 || st.OthersBytes != 0 || st.Failure != nil {
		t.Errorf("%+v", st)
	}
	if r, err := file.Verify(t.Context(), filepath.Join(elsewhere, folderOf(0)), nil); err != nil || !r.Clean() || r.Blocks != 30 {
		t.Errorf("%+v, %v", r, err)
	}
}

// A folder is replaced by a link after it was checked and before it is opened. The link must not be
// followed, whenever the replacement happens.
func TestFolderBecomesALink(t *testing.T) {
	for nth := int64(1); nth <= 6; nth++ {
		root, elsewhere := t.TempDir(), t.TempDir()
		for _, r := range []string{root, elsewhere} {
			makeIdleFolder(t, tenantConfig(t, r, 0, 0), 30)
		}
		ffs := faultfs.New(dirfs.OS(), nil, nil)
		var opened atomic.Int64
		folder := filepath.Join(root, folderOf(0))
		ffs.Forbid(func(op, path string) error {
			if op == "opendir" && path == folder && opened.Add(1) == nth {
				if err := os.Rename(folder, filepath.Join(elsewhere, "moved")); err != nil {
					t.Error(err)
				}
				if err := os.Symlink(filepath.Join(elsewhere, folderOf(0)), folder); err != nil {
					t.Error(err)
				}
			}
			return nil
		})
		c := tenantConfig(t, root, 1, 8)
		c.FS = ffs
		put(t, open(t, c), c.Formats[0], keys(0, 20)...)
		if r, err := file.Verify(t.Context(), filepath.Join(elsewhere, folderOf(0)), nil); err != nil || !r.Clean() || r.Blocks != 30 {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

// Another host, which ignores the locks, removes the folder. Its blocks are then misses, and the
// next Put stores a block again.
func TestFolderIsRemovedByAnotherHost(t *testing.T) {
	root := t.TempDir()
	c := tenantConfig(t, root, 0, 64)
	tr := open(t, c)
	put(t, tr, c.Formats[0], keys(0, 10)...)
	if err := os.RemoveAll(filepath.Join(root, folderOf(0))); err != nil {
		t.Fatal(err)
	}
	if s := state(t, tr, tiertest.Key(1)); s != tier.Absent {
		t.Errorf("a block that was removed is %s", s)
	}
	put(t, tr, c.Formats[0], keys(0, 10)...)
	if r, err := file.Verify(t.Context(), filepath.Join(root, folderOf(0)), nil); err != nil || !r.Clean() || r.Blocks != 10 {
		t.Errorf("%+v, %v", r, err)
	}
}

// The record is renewed once a minute, once after writes, and by Open and Close.
func TestRecordIsRenewedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTenants(t)
		c := s.config(0)
		ffs := faultfs.New(s.disk.Process(), nil, nil)
		var renewed atomic.Int64
		ffs.Forbid(func(op, path string) error {
			if op == "rename" && strings.HasSuffix(path, blockdir.RecordName) {
				renewed.Add(1)
			}
			return nil
		})
		c.FS = ffs
		tr := s.open(c)
		for minute := range 5 {
			s.fill(tr, &c, 100*minute, 100*minute+50)
			time.Sleep(time.Minute - 50*time.Millisecond)
		}
		synctest.Wait()
		if n := renewed.Load(); n < 6 || n > 11 {
			t.Errorf("the record was written %d times in five minutes, want 6 to 11", n)
		}
		s.close(tr)
		r, err := blockdir.ReadRecord(s.dir(folderOf(0)))
		if n := int64(s.blocks(0)); err != nil || !r.Closed || r.Blocks != n || r.Bytes != n*s.size || r.Peak != r.Bytes {
			t.Errorf("%+v, %v; there are %d blocks", r, err, n)
		}
		// Close does not mark the record as closed while another process has the folder open.
		one, other := s.open(s.config(0)), s.open(s.config(0))
		s.close(one)
		if r, err := blockdir.ReadRecord(s.dir(folderOf(0))); err != nil || r.Closed {
			t.Errorf("%+v, %v", r, err)
		}
		s.close(other)
	})
}
