package file_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/tier/file"
)

// On NFS a file that is removed while open keeps a name, so its folder cannot be removed. Close of
// a tier therefore failed.
func TestDefectLockOpenWhenRemoved(t *testing.T) {
	c := config(t)
	ffs := faultfs.New(dirfs.OS(), nil, nil)
	removed := 0
	ffs.Forbid(func(op, path string) error {
		if op != "remove" || !strings.HasSuffix(path, "/lock") {
			return nil
		}
		removed++
		fds, err := filepath.Glob("/proc/self/fd/*")
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && strings.HasSuffix(to, path) {
				t.Errorf("%s is removed while it is open", path)
			}
		}
		return err
	})
	dead := filepath.Join(c.Dirs[0], "tmp", strings.Repeat("0", 32))
	if err := open(t, c).Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(dead, 0o700), os.WriteFile(filepath.Join(dead, "lock"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	c.FS = ffs
	tr, err := file.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.Close(t.Context()); err != nil || removed != 2 {
		t.Errorf("%d locks were removed, want that of a dead session and the tier's own: %v", removed, err)
	}
}

// Two hosts that mount one NFS export dump the same blocks concurrently. Each finds all blocks,
// except those that were removed.
func TestNFSHostsShareADirectory(t *testing.T) {
	mounts := strings.Split(os.Getenv("KVLANE_NFS"), ",")
	if len(mounts) != 2 {
		testkit.Skip(t, "nfs", "KVLANE_NFS does not name two mounts of one export; tools/rxe/run -n has them")
	}
	policies := [2]file.FsyncPolicy{file.FsyncNever, file.FsyncFile}
	var hosts [2]*file.Tier
	var configs [2]file.Config
	for i, mount := range mounts {
		configs[i] = config(t)
		configs[i].Dirs, configs[i].Fsync = []string{filepath.Join(mount, "shared")}, policies[i]
	}
	var wg sync.WaitGroup
	for i := range hosts { // concurrently: both create the directory
		wg.Go(func() {
			var err error
			if hosts[i], err = file.Open(t.Context(), configs[i]); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	f := configs[0].Formats[0]
	for i, h := range hosts {
		wg.Go(func() {
			for _, key := range append(keys(0, 6), keys(100*(i+1), 100*(i+1)+2)...) {
				if err := h.Put(t.Context(), key, image(t, f, key)); err != nil {
					t.Errorf("put at %s: %v", mounts[i], err)
				}
			}
		})
	}
	wg.Wait()
	for i, h := range hosts {
		for _, key := range append(append(keys(0, 6), keys(100, 102)...), keys(200, 202)...) {
			if err := get(t, h, f, key); err != nil {
				t.Errorf("get at %s: %v", mounts[i], err)
			}
		}
	}
	// The host that did not remove a block may still find it or miss it, but must not fail.
	for _, key := range keys(0, 2) {
		if err := hosts[0].Delete(t.Context(), key); err != nil {
			t.Error(err)
		}
		if err := get(t, hosts[1], f, key); err != nil && !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("get of a block that the other host has removed: %v", err)
		}
	}
	if r, err := file.Verify(t.Context(), configs[1].Dirs[0], nil); err != nil || !r.Clean() || r.Blocks != 8 || r.LiveSessions != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, h := range hosts {
		if err := h.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
