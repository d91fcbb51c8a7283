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

// host opens a tier on a file system of its own over the same directory.
func host(t *testing.T, c file.Config) (*file.Tier, *faultfs.FS) {
	t.Helper()
	ffs := faultfs.New(dirfs.OS(), nil, nil)
	c.FS = ffs
	return open(t, c), ffs
}

// Two hosts dump the same blocks, and each is in the middle of giving a file its name when the
// other does so: both succeed, one file is there, and no temporary one is left.
func TestTwoHostsDumpTheSameBlocks(t *testing.T) {
	for _, policy := range []file.FsyncPolicy{file.FsyncNever, file.FsyncFile} {
		c := config(t)
		c.Fsync = policy
		one, ofs := host(t, c)
		other, _ := host(t, c)
		all := keys(0, 8)
		for i, key := range all {
			put(t, one, c.Formats[0], tiertest.Key(100+i)) // the folder may be there
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

// Replies of a server to a repeated request, or about a file removed by another host, do not fail a
// Put.
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

// Where locks do not reach from host to host, one that opens a directory takes the others' sessions
// for dead ones': they write on.
func TestHostsWhoseLocksDoNotReachEachOther(t *testing.T) {
	c := config(t)
	one, _ := host(t, c)
	put(t, one, c.Formats[0], keys(0, 4)...)
	sessions, err := filepath.Glob(filepath.Join(c.Dirs[0], "tmp", "*"))
	if err != nil || len(sessions) != 1 {
		t.Fatal(sessions, err)
	}
	if err := os.Remove(filepath.Join(sessions[0], "lock")); err != nil { // its lock is free
		t.Fatal(err)
	}
	other, _ := host(t, c) // sweeps
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

// Two hosts that make a directory at once, both under a lock of their own, agree on whose blocks it
// holds and on its id.
func TestDefectTwoHostsMakeADirectory(t *testing.T) {
	for when, before := range map[string]struct {
		op    string
		calls int32 // of op, with the last of which the other host comes between
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
				if calls.Add(1) == before.calls { // the other host has the lock too, as it sees it
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
				t.Errorf("%d calls of %s: the other host never came between", calls.Load(), before.op)
			}
		})
	}
}

// A directory with a bound of its own keeps to that, by its own coldest blocks; the others share
// the tier's.
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
	// The last writes may still free space.
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
	// All of them give up the same part.
	if _, err := tr.GC(t.Context(), st.Bytes/2); err != nil || tr.Stats().Bytes > st.Bytes/2 {
		t.Errorf("%d of %d bytes are left: %v", tr.Stats().Bytes, st.Bytes, err)
	}
	if now := stored(c.Dirs[1]); now == 0 || now >= own {
		t.Errorf("%d of %d bytes are left in the directory with a bound of its own", now, own)
	}
}

// A directory that is full of blocks in use holds up no write to another.
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
			t.Errorf("%d: %v, want one that says %q", bounds, err, want)
		}
	}
	c.DirBytes, c.MaxBytes = []int64{image}, 0
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

// A block removed by another program is no longer counted after a Get, Retain or Lookup has missed
// it.
func TestCountFallsWhenAFileIsFoundGone(t *testing.T) {
	c := config(t)
	// Which never comes to the recount of every minute.
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
		deadline := time.Now().Add(testkit.Patience())
		for st := tr.Stats(); st.Blocks != want || st.Bytes != want*c.Formats[0].Layout.ImageBytes(); st = tr.Stats() {
			if time.Now().After(deadline) {
				t.Fatalf("%d blocks of %d bytes are counted, want %d", st.Blocks, st.Bytes, want)
			}
			time.Sleep(time.Millisecond)
		}
	}
}
