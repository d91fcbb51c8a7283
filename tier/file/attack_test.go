package file_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// bounded returns the configuration of a tier with space for n blocks, and its file system. A Veto
// can make operations of that file system fail.
func bounded(t *testing.T, n int64) (file.Config, *faultfs.FS) {
	t.Helper()
	c := config(t)
	c.MaxBytes = n * c.Formats[0].Layout.ImageBytes()
	f := faultfs.New(dirfs.OS(), nil, nil)
	c.FS = f
	return c, f
}

// within returns a context that ends after d.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// If a folder cannot be listed for a while, writes must not stop: eviction rounds are retried while
// writes wait.
func TestDefectWritingStallsAfterAFailedRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := bounded(t, 8)
		tr := open(t, c)
		all := keys(0, 12)
		put(t, tr, c.Formats[0], all[:7]...)
		var denied atomic.Int64
		f.Forbid(func(op, _ string) error {
			if op == "readdir" && denied.Add(1) <= 12 { // more failures than one round tries
				return syscall.EACCES
			}
			return nil
		})
		for _, key := range all[7:] {
			if err := tr.Put(within(t, 8*time.Second), key, image(t, c.Formats[0], key)); err != nil {
				t.Fatalf("put: %v", err)
			}
		}
		if denied.Load() <= 12 {
			t.Errorf("only %d folders were listed", denied.Load())
		}
	})
}

// An eviction round computes the excess once, when it starts. Blocks that are written during the
// round, for example by a Put that waited for space, must not make it remove more.
func TestDefectRoundRemovesForWhatIsWrittenMeanwhile(t *testing.T) {
	c := config(t)
	f := faultfs.New(dirfs.OS(), nil, nil)
	c.FS = f
	tr := open(t, c)
	all := keys(0, 32)
	put(t, tr, c.Formats[0], all[:8]...)
	setTimes(t, c.Dirs, all[:8])
	more := all[8:]
	f.Forbid(func(op, path string) error {
		if op == "remove" && len(more) > 0 && !strings.HasPrefix(path, c.Dirs[0]+"/tmp/") {
			key := more[0]
			more = more[1:]
			put(t, tr, c.Formats[0], key)
		}
		return nil
	})
	removed, err := tr.GC(t.Context(), 6*c.Formats[0].Layout.ImageBytes())
	if st := tr.Stats(); err != nil || removed != 2 || st.Blocks != 8 {
		t.Errorf("GC from 8 blocks to 6 removed %d while as many were written, %d are left: %v", removed, st.Blocks, err)
	}
}

// A cold file that cannot be removed is skipped, counted and reported. Eviction continues with
// other files.
func TestDefectOneFileThatStaysStopsEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := bounded(t, 8)
		tr := open(t, c)
		all := keys(0, 24)
		put(t, tr, c.Formats[0], all[:4]...)
		setTimes(t, c.Dirs, all[:4])
		stays := all[0]
		f.Forbid(func(op, path string) error {
			if op == "remove" && strings.HasSuffix(path, stays.String()) {
				return syscall.EPERM
			}
			return nil
		})
		for _, key := range all[4:] {
			if err := tr.Put(within(t, 8*time.Second), key, image(t, c.Formats[0], key)); err != nil {
				t.Fatalf("put: %v", err)
			}
		}
		if err := get(t, tr, c.Formats[0], stays); err != nil {
			t.Errorf("the block that stays: %v", err)
		}
		removed, err := tr.GC(t.Context(), 0)
		if !errors.Is(err, syscall.EPERM) || !strings.Contains(err.Error(), stays.String()) || removed < 6 {
			t.Errorf("GC removed %d: %v", removed, err)
		}
		if st := tr.Stats(); st.Stuck != 1 || st.Blocks != 1 || st.Errors == 0 {
			t.Errorf("%+v", st)
		}
	})
}

// Another process removes the eviction candidates after they were listed. Their space is then free,
// and a waiting Put must use it.
func TestDefectCandidatesRemovedByOthersStallWriting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := bounded(t, 8)
		tr := open(t, c)
		all := keys(0, 12)
		put(t, tr, c.Formats[0], all[:7]...)
		f.Forbid(func(op, path string) error {
			if op == "remove" && !strings.HasPrefix(path, c.Dirs[0]+"/tmp/") {
				return errors.Join(syscall.ENOENT, os.Remove(path)) // another process removed it just before
			}
			return nil
		})
		for _, key := range all[7:] {
			if err := tr.Put(within(t, 8*time.Second), key, image(t, c.Formats[0], key)); err != nil {
				t.Fatalf("put: %v", err)
			}
		}
	})
}

// If no file can be removed, a Put fails after a while even if its context has no deadline, and
// later Puts fail at once. Writing resumes when files can be removed again.
func TestDefectWaitForSpaceHasNoEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := bounded(t, 4)
		tr := open(t, c)
		all := keys(0, 8)
		put(t, tr, c.Formats[0], all[:4]...)
		f.Forbid(func(op, _ string) error {
			if op == "remove" {
				return syscall.EPERM
			}
			return nil
		})
		began := time.Now()
		err := tr.Put(within(t, 2*time.Minute), all[4], image(t, c.Formats[0], all[4]))
		if took := time.Since(began); !errors.Is(err, errdefs.ErrBusy) || !errors.Is(err, syscall.EPERM) || took > time.Minute {
			t.Errorf("after %v: %v", took, err)
		}
		began = time.Now()
		if err := tr.Put(within(t, 2*time.Minute), all[5], image(t, c.Formats[0], all[5])); !errors.Is(err, errdefs.ErrBusy) || time.Since(began) > 0 {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if st := tr.Stats(); st.Paused == nil || st.Failure == nil || st.Stuck != 4 {
			t.Errorf("%+v", st)
		}
		f.Forbid(nil)
		time.Sleep(2 * time.Second)
		put(t, tr, c.Formats[0], all[4:]...)
		if st := tr.Stats(); st.Paused != nil || st.Failure != nil || st.Stuck != 0 || st.Blocks > 4 {
			t.Errorf("%+v", st)
		}
	})
}

// A directory listing that hangs must not delay a write that has space.
func TestDefectWriteWaitsForAListing(t *testing.T) {
	c, f := bounded(t, 1000)
	tr := open(t, c)
	put(t, tr, c.Formats[0], tiertest.Key(1))
	listing, release := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	f.Forbid(func(op, path string) error {
		if op == "readdir" && strings.HasSuffix(path, "/"+tiertest.Key(1).String()[:2]) && once.CompareAndSwap(false, true) {
			close(listing)
			<-release
		}
		return nil
	})
	counted := make(chan error, 1)
	go func() {
		_, err := tr.GC(t.Context(), 1<<40)
		counted <- err
	}()
	<-listing
	neighbor := tiertest.Key(1)
	neighbor[31]++
	written := make(chan error, 1)
	block := image(t, c.Formats[0], neighbor)
	go func() { written <- tr.Put(t.Context(), neighbor, block) }()
	select {
	case err := <-written:
		written <- err
	case <-time.After(testkit.Patience()):
		t.Error("the write waits for the listing")
	}
	close(release)
	if err := errors.Join(<-counted, <-written); err != nil {
		t.Error(err)
	}
	if st := tr.Stats(); st.Blocks != 2 {
		t.Errorf("%+v", st)
	}
}

// A tier without a bound pauses writes while the disk is full. Writes fail without touching the
// disk, Stats reports the pause, and the pause ends by itself.
func TestDefectFullDiskFailsEveryLaterWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := config(t)
		f := faultfs.New(dirfs.OS(), nil, nil)
		c.FS = f
		tr := open(t, c)
		all := keys(0, 4)
		var tries atomic.Int64
		full := func(op, _ string) error {
			if op == "write" {
				tries.Add(1)
				return syscall.ENOSPC
			}
			return nil
		}
		f.Forbid(full)
		for range 100 {
			if err := tr.Put(t.Context(), all[0], image(t, c.Formats[0], all[0])); !errors.Is(err, errdefs.ErrNoSpace) || !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
		}
		if st := tr.Stats(); tries.Load() != 1 || !errors.Is(st.Paused, errdefs.ErrNoSpace) {
			t.Errorf("%d writes were tried; %+v", tries.Load(), st)
		}
		for range 100 {
			time.Sleep(time.Second)
			_ = tr.Put(t.Context(), all[1], image(t, c.Formats[0], all[1]))
		}
		if n := tries.Load(); n < 5 || n > 10 {
			t.Errorf("%d writes were tried in 100 s", n)
		}
		f.Forbid(nil)
		time.Sleep(30 * time.Second)
		put(t, tr, c.Formats[0], all...)
		if st := tr.Stats(); st.Paused != nil {
			t.Errorf("%+v", st)
		}
	})
}

// Open waits for the lock until its context ends.
func TestDefectOpenWaitsForTheLockForEver(t *testing.T) {
	c := config(t)
	open(t, c)
	lock, err := os.OpenFile(filepath.Join(c.Dirs[0], "kvlane.lock"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	_, err = file.Open(within(t, 50*time.Millisecond), c) // with the defect, this hangs
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("open: %v", err)
	}
	r, err := file.Verify(within(t, 50*time.Millisecond), c.Dirs[0], nil)
	if err == nil && r.Clean() {
		t.Errorf("verify: %+v, %v", r, err)
	}
}

// If the file system hangs, Close returns when its context ends. Its error reports that memory is
// still in use.
func TestDefectCloseWaitsForAHangingReadForEver(t *testing.T) {
	c := config(t)
	plan := fault.New(1)
	c.FS = faultfs.New(dirfs.OS(), plan, nil)
	tr, key := open(t, c), tiertest.Key(1)
	put(t, tr, c.Formats[0], key)
	plan.Add(fault.Nth("read", int(plan.Seen("read"))).Stall())
	returned := make(chan error, 1)
	go func() { returned <- get(t, tr, c.Formats[0], key) }()
	if err := plan.Await(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if err := tr.Close(within(t, 50*time.Millisecond)); !errors.Is(err, errdefs.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close: %v", err)
	}
	plan.Release()
	if err := <-returned; err != nil {
		t.Error(err)
	}
	if err := tr.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := tr.Lookup(t.Context(), []block.Key{key}, make([]tier.State, 1)); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("after close: %v", err)
	}
}

// The folder of temporary files may be removed while a process has the directory open. Writes must
// recreate it.
func TestDefectRemovedTemporaryFolderFailsEveryWrite(t *testing.T) {
	c := config(t)
	tr := open(t, c)
	all := keys(0, 4)
	put(t, tr, c.Formats[0], all[0])
	if err := os.RemoveAll(filepath.Join(c.Dirs[0], "tmp")); err != nil {
		t.Fatal(err)
	}
	put(t, tr, c.Formats[0], all[1:]...)
	// The session folder exists again, and no process treats it as an abandoned one.
	open(t, c)
	put(t, tr, c.Formats[0], keys(10, 12)...)
	if r, err := file.Verify(t.Context(), c.Dirs[0], nil); err != nil || !r.Clean() || r.LiveSessions != 2 {
		t.Errorf("%+v, %v", r, err)
	}
}

// A tier without a bound must also count removals by other processes.
func TestDefectCountsOfAnUnboundedTierStayWrong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := config(t)
		tr := open(t, c)
		all := keys(0, 40)
		put(t, tr, c.Formats[0], all...)
		if _, err := file.GC(t.Context(), c.Dirs[0], 0, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if st := tr.Stats(); st.Blocks != 0 {
			t.Errorf("%+v", st)
		}
	})
}
