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

// bounded is the configuration of a tier for n blocks, on files that a Veto can forbid.
func bounded(t *testing.T, n int64) (file.Config, *faultfs.FS) {
	t.Helper()
	c := config(t)
	c.MaxBytes = n * c.Formats[0].Layout.ImageBytes()
	f := faultfs.New(dirfs.OS(), nil, nil)
	c.FS = f
	return c, f
}

// within returns a context for a fast operation.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// A folder that cannot be listed for a while must not stop writes: rounds are repeated while writes
// wait.
func TestDefectWritingStallsAfterAFailedRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := bounded(t, 8)
		tr := open(t, c)
		all := keys(0, 12)
		put(t, tr, c.Formats[0], all[:7]...)
		var denied atomic.Int64
		f.Forbid(func(op, _ string) error {
			if op == "readdir" && denied.Add(1) <= 12 { // more than one round's
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
			t.Errorf("only %d listings were asked for", denied.Load())
		}
	})
}

// A round removes the excess at its beginning. Blocks written meanwhile, as by a Put that waited
// for space, do not make it remove more.
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

// One cold file that cannot be removed is passed over, counted and reported.
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

// Another process removes the candidates between listing and removing: there is room, and a Put
// takes it.
func TestDefectCandidatesRemovedByOthersStallWriting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := bounded(t, 8)
		tr := open(t, c)
		all := keys(0, 12)
		put(t, tr, c.Formats[0], all[:7]...)
		f.Forbid(func(op, path string) error {
			if op == "remove" && !strings.HasPrefix(path, c.Dirs[0]+"/tmp/") {
				return errors.Join(syscall.ENOENT, os.Remove(path)) // just before
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

// Where nothing can be removed a Put does not wait for ever, though its context has no end, and
// those after it fail at once; writing resumes by itself.
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

// A listing that hangs holds up no write that has room.
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

// Without a bound a full disk pauses writes: no write retries all the time, Stats shows the pause,
// and it ends by itself.
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

// Opening waits for others, but not longer than its context.
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
	_, err = file.Open(within(t, 50*time.Millisecond), c) // hangs with the defect
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("open: %v", err)
	}
	r, err := file.Verify(within(t, 50*time.Millisecond), c.Dirs[0], nil)
	if err == nil && r.Clean() {
		t.Errorf("verify: %+v, %v", r, err)
	}
}

// A hanging file system does not delay Close beyond its context. The error states that memory is in
// use.
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

// The folder of temporary files is removed while a process has the directory open.
func TestDefectRemovedTemporaryFolderFailsEveryWrite(t *testing.T) {
	c := config(t)
	tr := open(t, c)
	all := keys(0, 4)
	put(t, tr, c.Formats[0], all[0])
	if err := os.RemoveAll(filepath.Join(c.Dirs[0], "tmp")); err != nil {
		t.Fatal(err)
	}
	put(t, tr, c.Formats[0], all[1:]...)
	// The session exists again, and no process takes it for a dead one.
	open(t, c)
	put(t, tr, c.Formats[0], keys(10, 12)...)
	if r, err := file.Verify(t.Context(), c.Dirs[0], nil); err != nil || !r.Clean() || r.LiveSessions != 2 {
		t.Errorf("%+v, %v", r, err)
	}
}

// The counts of a tier without a bound include removals by other processes.
func TestDefectCountsOfAnUnboundedTierStayWrong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := config(t)
		tr := open(t, c)
		all := keys(0, 40)
		put(t, tr, c.Formats[0], all...)
		if _, err := file.GC(t.Context(), c.Dirs[0], 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if st := tr.Stats(); st.Blocks != 0 {
			t.Errorf("%+v", st)
		}
	})
}
