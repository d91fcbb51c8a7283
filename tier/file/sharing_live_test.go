package file_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// Several owners open their folders and write at the same time. Within seconds they are back at the
// shared bound, and they evict no more than necessary.
func TestOwnersThatStartTogether(t *testing.T) {
	for _, owners := range []int{2, 4, 8} {
		synctest.Test(t, func(t *testing.T) {
			s := newTenants(t)
			tiers, configs := make([]*file.Tier, owners), make([]file.Config, owners)
			for i := range owners {
				configs[i] = s.config(i)
				tiers[i] = s.open(configs[i])
			}
			for n := range 50 {
				for i, tr := range tiers {
					s.fill(tr, &configs[i], n, n+1)
				}
			}
			for _, wait := range []time.Duration{10 * time.Second, 5 * time.Minute} {
				time.Sleep(wait)
				synctest.Wait()
				if n := s.all(owners); n > sharedBlocks || n < sharedBlocks*3/4 {
					t.Errorf("%d owners have %d blocks after %v, the bound is %d", owners, n, wait, sharedBlocks)
				}
			}
		})
	}
}

// If a record claims an impossibly high number of bytes, another owner loses at most a sixteenth of
// its bound, and its statistics report the claim.
func TestPeakOfARecordIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTenants(t)
		c0, c1 := s.config(0), s.config(1)
		s.close(s.open(c1))
		tr := s.open(c0)
		for minute := range 30 {
			s.record(1, func(r *blockdir.Record) {
				r.Blocks, r.Bytes, r.Peak, r.Renewed, r.Host, r.Closed = 0, 0, math.MaxInt64, time.Now(), "another host", false
			})
			s.fill(tr, &c0, 10*minute, 10*minute+10)
			time.Sleep(time.Minute)
		}
		synctest.Wait()
		if n := s.blocks(0); n < sharedBlocks*3/4 {
			t.Errorf("%d blocks are left, the bound is %d", n, sharedBlocks)
		}
		if st := tr.Stats(); st.OthersBytes == 0 || st.OthersBytes > sharedBlocks/16*s.size {
			t.Errorf("%+v", st)
		}
	})
}

// Without other folders a tier evicts no block on behalf of another identity.
func TestNothingIsYieldedWithoutNeighbours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTenants(t)
		c := s.config(0)
		tr := s.open(c)
		s.fill(tr, &c, 0, 2*sharedBlocks)
		if st := tr.Stats(); st.Evictions == 0 || st.Yielded != 0 || st.OthersBytes != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// A record is renewed within seconds while its owner writes, so that other owners keep to the rest
// of the bound.
func TestRecordFollowsGrowth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTenants(t)
		c := s.config(0)
		tr := s.open(c)
		s.fill(tr, &c, 0, sharedBlocks/16-1)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if r, err := blockdir.ReadRecord(s.dir(folderOf(0))); err != nil || r.Blocks != 0 {
			t.Errorf("%+v, %v", r, err)
		}
		s.fill(tr, &c, 100, 120)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if r, err := blockdir.ReadRecord(s.dir(folderOf(0))); err != nil || r.Blocks < 20 {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// Foreign files in another owner's folder do not prevent that its blocks are counted and evicted.
// Links are neither removed nor followed.
func TestForeignNamesInAnIdleFolder(t *testing.T) {
	elsewhere := t.TempDir()
	for name, place := range map[string]func(path string) error{
		"ab":                func(path string) error { return os.WriteFile(path, []byte("mine"), 0o600) },
		"cd":                func(path string) error { return os.Symlink(elsewhere, path) },
		"tmp":               func(path string) error { return os.WriteFile(path, []byte("mine"), 0o600) },
		"quarantine":        func(path string) error { return os.WriteFile(path, []byte("mine"), 0o600) },
		blockdir.RecordName: func(path string) error { return os.MkdirAll(path+"/mine", 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			makeIdleFolder(t, tenantConfig(t, root, 0, 0), 30)
			folder := filepath.Join(root, folderOf(0))
			path := filepath.Join(folder, name)
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			if err := place(path); err != nil {
				t.Fatal(err)
			}
			c := tenantConfig(t, root, 1, 40)
			tr := open(t, c)
			put(t, tr, c.Formats[0], keys(100, 160)...)
			if n := filesOfBlocks(t, root); n > 40 {
				t.Errorf("%d blocks, the bound is 40", n)
			}
			if st := tr.Stats(); st.Reclaimed == 0 || st.Failure != nil {
				t.Errorf("%+v", st)
			}
			kept := path
			if name == blockdir.RecordName { // it was moved aside
				kept += ".*/mine"
			}
			if found, err := filepath.Glob(kept); err != nil || len(found) != 1 {
				t.Errorf("%s: %v, %v", kept, found, err)
			}
		})
	}
}

// filesOfBlocks counts the files below root that have the name of a block.
func filesOfBlocks(t *testing.T, root string) (n int) {
	t.Helper()
	found, err := filepath.Glob(root + "/*/??/" + strings.Repeat("?", 64))
	if err != nil {
		t.Fatal(err)
	}
	return len(found)
}

// An owner reports that it cannot write its record.
func TestRecordThatCannotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTenants(t)
		c := s.config(0)
		f := faultfs.New(s.disk.Process(), nil, nil)
		f.Forbid(func(op, path string) error {
			if op == "rename" && strings.HasSuffix(path, blockdir.RecordName) {
				return syscall.EACCES
			}
			return nil
		})
		c.FS = f
		tr := s.open(c)
		synctest.Wait()
		if err := tr.Stats().Failure; err == nil || !strings.Contains(fmt.Sprint(err), "write usage record") {
			t.Errorf("failure: %v", err)
		}
		f.Forbid(nil)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if err := tr.Stats().Failure; err != nil {
			t.Errorf("failure: %v", err)
		}
	})
}

// The blocks of a folder that can be read but not written are counted only occasionally, and not in
// each round.
func TestFolderThatCannotBeWritten(t *testing.T) {
	root := t.TempDir()
	makeIdleFolder(t, tenantConfig(t, root, 0, 0), 30)
	record := filepath.Join(root, folderOf(0), blockdir.RecordName)
	if err := os.Remove(record); err != nil { // without a record the bytes of the folder are unknown, as after a crash
		t.Fatal(err)
	}
	c := tenantConfig(t, root, 1, 200)
	f := faultfs.New(dirfs.OS(), nil, nil)
	var listed atomic.Int64
	f.Forbid(func(op, path string) error {
		if strings.Contains(path, folderOf(0)) {
			switch op {
			case "readdir":
				listed.Add(1)
			case "remove", "rename", "mkdir", "create":
				return syscall.EACCES
			}
		}
		return nil
	})
	c.FS = f
	tr := open(t, c)
	for i := range 150 { // each Put may start a round
		put(t, tr, c.Formats[0], keys(100+i, 101+i)...)
	}
	if st := tr.Stats(); st.OthersBytes != 30*c.Formats[0].Layout.ImageBytes() {
		t.Errorf("%+v", st)
	}
	// A count lists each of the 30 folders at most once, and so does a search for cold blocks.
	if n := listed.Load(); n > 200 {
		t.Errorf("the folder was listed %d times", n)
	}
}
