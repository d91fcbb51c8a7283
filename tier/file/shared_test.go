package file_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// host opens a tier over the same directory on a separate file system, as on another host.
func host(t *testing.T, c file.Config) (*file.Tier, *faultfs.FS) {
	t.Helper()
	ffs := faultfs.New(dirfs.OS(), nil, nil)
	c.FS = ffs
	return open(t, c), ffs
}

// Two hosts dump the same blocks. While one is about to rename its file, the other renames the same
// file. Both must succeed and leave one file and no temporary file.
func TestTwoHostsDumpTheSameBlocks(t *testing.T) {
	for _, policy := range []file.FsyncPolicy{file.FsyncNever, file.FsyncFile} {
		c := config(t)
		c.Fsync = policy
		one, ofs := host(t, c)
		other, _ := host(t, c)
		all := keys(0, 8)
		for i, key := range all {
			put(t, one, c.Formats[0], tiertest.Key(100+i)) // the folder may exist already
			plan := fault.New(1, fault.Nth("rename", 0).Stall())
			ofs.Use(plan)
			done := make(chan error, 1)
			go func() { done <- one.Put(t.Context(), key, image(t, c.Formats[0], key)) }()
			for plan.Seen("rename") == 0 {
				if len(done) > 0 {
					t.Fatal(<-done)
				}
			}
			put(t, other, c.Formats[0], key)
			plan.Release()
			if err := <-done; err != nil {
				t.Errorf("%s: put of block %d, which another host has put meanwhile: %v", policy, i, err)
			}
		}
		var wg sync.WaitGroup
		for _, tr := range []*file.Tier{one, other} {
			wg.Go(func() {
				for _, key := range keys(20, 40) {
					if err := tr.Put(t.Context(), key, image(t, c.Formats[0], key)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		for _, key := range append(all, keys(20, 40)...) {
			for _, tr := range []*file.Tier{one, other} {
				if err := get(t, tr, c.Formats[0], key); err != nil {
					t.Error(err)
				}
			}
		}
		if r, err := file.Verify(t.Context(), c.Dirs[0], nil); err != nil || !r.Clean() || r.Blocks != 36 {
			t.Errorf("%+v, %v", r, err)
		}
		if left, err := filepath.Glob(filepath.Join(c.Dirs[0], "tmp", "*", "[0-9a-f]*")); err != nil || len(left) != 0 {
			t.Errorf("temporary files are left: %q, %v", left, err)
		}
	}
}

// A network file system may return ESTALE or ENOENT for a repeated request, or for a file that
// another host has removed. A Put must still succeed.
func TestDefectStaleHandlesFailAWrite(t *testing.T) {
	for _, op := range []string{"open", "write", "rename"} {
		for _, cause := range []error{unix.ESTALE, unix.ENOENT} {
			c := config(t)
			tr, ffs := host(t, c)
			put(t, tr, c.Formats[0], keys(0, 4)...)
			var once sync.Once
			ffs.Forbid(func(what, path string) (err error) {
				if what == op && strings.Contains(path, "/tmp/") {
					once.Do(func() { err = cause })
				}
				return err
			})
			if err := tr.Put(t.Context(), tiertest.Key(9), image(t, c.Formats[0], tiertest.Key(9))); err != nil {
				t.Errorf("%v of a temporary file's %s: %v", cause, op, err)
			}
			if err := get(t, tr, c.Formats[0], tiertest.Key(9)); err != nil {
				t.Error(err)
			}
		}
	}
}

// If file locks do not work between hosts, a host that opens a directory removes the session
// folders of live hosts. Those must still be able to write.
func TestHostsWithSeparateLocks(t *testing.T) {
	c := config(t)
	one, _ := host(t, c)
	put(t, one, c.Formats[0], keys(0, 4)...)
	sessions, err := filepath.Glob(filepath.Join(c.Dirs[0], "tmp", "*"))
	if err != nil || len(sessions) != 1 {
		t.Fatal(sessions, err)
	}
	if err := os.Remove(filepath.Join(sessions[0], "lock")); err != nil { // releases the lock, as it appears to the other host
		t.Fatal(err)
	}
	other, _ := host(t, c) // removes the session folders
	if _, err := os.Stat(sessions[0]); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the session was not swept: %v", err)
	}
	put(t, one, c.Formats[0], keys(4, 8)...)
	put(t, other, c.Formats[0], keys(8, 12)...)
	for _, key := range keys(0, 12) {
		if err := get(t, one, c.Formats[0], key); err != nil {
			t.Error(err)
		}
	}
}

// Two hosts create a directory at the same time, and both believe that they hold the lock. They
// must agree on its identity and id.
func TestDefectTwoHostsMakeADirectory(t *testing.T) {
	for when, before := range map[string]struct {
		op    string
		calls int32 // number of the call of op during which the other host opens the directory
	}{
		"before it is listed under the lock": {"readdir", 2},
		"before it is named":                 {"rename", 1},
	} {
		t.Run(when, func(t *testing.T) {
			c := config(t)
			var calls atomic.Int32
			ffs := faultfs.New(dirfs.OS(), nil, nil)
			ffs.Forbid(func(op, path string) error {
				if op != before.op {
					return nil
				}
				if calls.Add(1) == before.calls { // the other host takes the lock too
					if err := os.Remove(filepath.Join(c.Dirs[0], "kvlane.lock")); err != nil {
						t.Error(err)
					}
					put(t, open(t, c), c.Formats[0], keys(0, 4)...)
				}
				return nil
			})
			second := c
			second.FS = ffs
			tr := open(t, second)
			for _, key := range keys(0, 4) {
				if err := get(t, tr, c.Formats[0], key); err != nil {
					t.Error(err)
				}
			}
			if r, err := file.Verify(t.Context(), c.Dirs[0], nil); err != nil || !r.Clean() {
				t.Errorf("%+v, %v", r, err)
			}
			if calls.Load() < before.calls {
				t.Errorf("%d calls of %s: the other host did not open the directory", calls.Load(), before.op)
			}
		})
	}
}

// A directory with its own bound evicts its own coldest blocks. The other directories share the
// bound of the tier.
func TestDirectoriesWithBoundsOfTheirOwn(t *testing.T) {
	c := config(t)
	image := c.Formats[0].Layout.ImageBytes()
	c.Dirs = append(c.Dirs, t.TempDir(), t.TempDir())
	c.DirBytes, c.MaxBytes = []int64{0, 6 * image}, 40*image
	tr := open(t, c)
	const n = 120
	for _, key := range keys(0, n) {
		put(t, tr, c.Formats[0], key)
	}
	stored := func(dir string) int64 {
		t.Helper()
		in, err := file.Inspect(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		return in.Bytes
	}
	var own, shared int64
	st := tr.Stats()
	// The last writes may still be evicting blocks.
	for end := time.Now().Add(testkit.Patience()); time.Now().Before(end); {
		own, shared = stored(c.Dirs[1]), stored(c.Dirs[0])+stored(c.Dirs[2])
		before := st
		if st = tr.Stats(); st == before && st.Bytes == own+shared {
			break
		}
	}
	if own > 6*image || own < 3*image || shared > 40*image || shared < 30*image {
		t.Errorf("%d blocks are in the directory with a bound of 6, and %d in those with one of 40", own/image, shared/image)
	}
	if st.CapacityBytes != 46*image || st.Bytes != own+shared || st.Evictions != n-st.Blocks || st.Errors != 0 {
		t.Errorf("%+v", st)
	}
	// GC evicts the same share from every directory.
	if _, err := tr.GC(t.Context(), st.Bytes/2); err != nil || tr.Stats().Bytes > st.Bytes/2 {
		t.Errorf("%d of %d bytes are left: %v", tr.Stats().Bytes, st.Bytes, err)
	}
	if now := stored(c.Dirs[1]); now == 0 || now >= own {
		t.Errorf("%d of %d bytes are left in the directory with a bound of its own", now, own)
	}
}

// A directory that is full of blocks in use does not delay writes to another directory.
func TestFullDirectoryHoldsUpNoOther(t *testing.T) {
	c := config(t)
	c.Dirs = append(c.Dirs, t.TempDir())
	c.DirBytes = []int64{2 * c.Formats[0].Layout.ImageBytes()}
	tr := open(t, c)
	full := 0
	for i, key := range keys(0, 40) {
		src := image(t, c.Formats[0], key)
		ctx, cancel := t.Context(), context.CancelFunc(func() {})
		if full == 2 {
			ctx, cancel = context.WithTimeout(ctx, 50*time.Millisecond)
		}
		err := tr.Put(ctx, key, src)
		cancel()
		_, serr := os.Stat(filepath.Join(c.Dirs[0], key.String()[:2], key.String()))
		switch {
		case err == nil && serr == nil:
			full++
			if k, err := tr.Retain(t.Context(), keys(i, i+1)); k != 1 || err != nil {
				t.Fatal(k, err)
			}
			defer tr.Release(keys(i, i+1))
		case err != nil && (full < 2 || !errors.Is(err, errdefs.ErrBusy) || !strings.Contains(err.Error(), "bytes that directory "+c.Dirs[0])):
			t.Fatalf("put of block %d with %d in the directory of two: %v", i, full, err)
		}
	}
	if st := tr.Stats(); full != 2 || st.Blocks < 10 || st.CapacityBytes != 0 {
		t.Errorf("%d blocks in the full directory; %+v", full, st)
	}
}

func TestBoundsOfDirectoriesAreValidated(t *testing.T) {
	c := config(t)
	image := c.Formats[0].Layout.ImageBytes()
	for want, bounds := range map[string][]int64{
		"bounds of 2 directories are given, expected 1": {image, image},
		"does not hold one block":                       {image - 1},
		"is for no directory":                           {image},
	} {
		c.DirBytes, c.MaxBytes = bounds, 4*image
		if err := c.Validate(); !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%d: %v, want one that contains %q", bounds, err, want)
		}
	}
	c.DirBytes, c.MaxBytes = []int64{image}, 0
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

// A block that another program has removed is no longer counted after a Get, Retain or Lookup has
// missed it.
func TestCountFallsWhenAFileIsFoundGone(t *testing.T) {
	c := config(t)
	// The fake clock stops the recount of every minute.
	c.Clock = clockwork.NewFakeClockAt(time.Now())
	tr := open(t, c)
	all := keys(0, 9)
	put(t, tr, c.Formats[0], all...)
	for i, key := range all {
		if err := os.Remove(filepath.Join(c.Dirs[0], key.String()[:2], key.String())); err != nil {
			t.Fatal(err)
		}
		switch i % 3 {
		case 0:
			if err := get(t, tr, c.Formats[0], key); !errors.Is(err, errdefs.ErrNotFound) {
				t.Error(err)
			}
		case 1:
			if n, err := tr.Retain(t.Context(), []block.Key{key}); n != 0 || err != nil {
				t.Errorf("%d retained, %v", n, err)
			}
		default:
			state(t, tr, key)
		}
		want := int64(len(all) - i - 1)
		late := time.Now().Add(testkit.Patience())
		for st := tr.Stats(); st.Blocks != want || st.Bytes != want*c.Formats[0].Layout.ImageBytes(); st = tr.Stats() {
			if time.Now().After(late) {
				t.Fatalf("%d blocks of %d bytes are counted, want %d", st.Blocks, st.Bytes, want)
			}
			time.Sleep(time.Millisecond)
		}
	}
}
