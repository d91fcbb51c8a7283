package log_test

import (
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// happens waits until plan has seen n operations named op.
func happens(t *testing.T, plan *fault.Plan, op string, n int64) {
	t.Helper()
	for timeout := time.After(testkit.Patience()); plan.Seen(op) < n; {
		select {
		case <-timeout:
			t.Fatalf("%d of %d operations %s", plan.Seen(op), n, op)
		case <-time.After(time.Millisecond):
		}
	}
}

// The disk idled between two syncs although many bytes were waiting to be written.
func TestDefectDiskIdlesBetweenSyncs(t *testing.T) {
	for _, policy := range []log.FsyncPolicy{log.FsyncInterval, log.FsyncAlways, log.FsyncNever} {
		t.Run(policy.String(), func(t *testing.T) {
			plan := fault.New(1)
			c := config(t)
			c.FS, c.Fsync, c.SyncEvery = faultfs.New(dirfs.OS(), plan, nil), policy, time.Hour
			log.GroupBytes(&c, 2*c.Formats[0].Layout.ImageBytes())
			tr := open(t, c)
			put(t, tr, c.Formats[0], keys(0, 1)...)
			syncs := plan.Seen("sync")
			put(t, tr, c.Formats[0], keys(1, 4)...)
			if policy != log.FsyncInterval {
				closeTier(t, tr)
				if n := plan.Seen("writeback"); n != 0 {
					t.Errorf("writeback was started %d times", n)
				}
				return
			}
			happens(t, plan, "writeback", 1)
			if n := plan.Seen("sync"); n != syncs {
				t.Errorf("%d syncs", n-syncs)
			}
		})
	}
}

// If writeback is not supported, the sync writes all bytes.
func TestWritebackCannotBeStarted(t *testing.T) {
	d := newDisk(t, log.FsyncInterval)
	d.c.SyncEvery = time.Hour
	log.GroupBytes(&d.c, 1)
	plan := fault.New(1, fault.After("writeback", 0).Fail(unix.ENOSYS))
	_ = d.run(plan, true, func(tr *log.Tier) error {
		put(t, tr, d.f, keys(0, 3)...)
		happens(t, plan, "writeback", 1)
		if err := log.Sync(tr); err != nil {
			t.Error(err)
		}
		if s := tr.Stats(); s.Errors != 0 {
			t.Errorf("%d errors", s.Errors)
		}
		d.PowerFail(faultfs.KeepSynced())
		return nil
	})
	d.check(map[block.Key]bool{tiertest.Key(0): true, tiertest.Key(1): true, tiertest.Key(2): true}, keys(0, 3))
}

// syncHookFS calls a function once, right after the next sync of a file.
type syncHookFS struct {
	dirfs.FS
	after *atomic.Pointer[func()]
}

type syncHookDir struct {
	dirfs.Dir
	after *atomic.Pointer[func()]
}

type syncHookFile struct {
	dirfs.File
	dirfs.Sizer
	after *atomic.Pointer[func()]
}

func (f syncHookFS) OpenDir(path string) (dirfs.Dir, error) {
	d, err := f.FS.OpenDir(path)
	if err != nil {
		return nil, err
	}
	return syncHookDir{d, f.after}, nil
}

func (d syncHookDir) Open(name string, flag int) (dirfs.File, error) {
	f, err := d.Dir.Open(name, flag)
	if err != nil {
		return nil, err
	}
	s, ok := f.(dirfs.Sizer)
	if !ok {
		return f, nil
	}
	return syncHookFile{f, s, d.after}, nil
}

func (f syncHookFile) Sync() error {
	err := f.File.Sync()
	if do := f.after.Swap(nil); do != nil {
		(*do)()
	}
	return err
}

// A block that is written while a sync runs is not durable after that sync.
func TestWrittenDuringASync(t *testing.T) {
	d := newDisk(t, log.FsyncInterval)
	d.c.SyncEvery = time.Hour
	process := d.Process()
	var after atomic.Pointer[func()]
	c := d.c
	c.FS = syncHookFS{process, &after}
	tr, err := log.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	put(t, tr, d.f, keys(0, 1)...)
	do := func() { put(t, tr, d.f, keys(1, 2)...) }
	after.Store(&do)
	for range 2 { // the second sync covers the block written during the first
		if err := log.Sync(tr); err != nil {
			t.Fatal(err)
		}
	}
	process.Kill()
	_ = tr.Close(t.Context())
	d.PowerFail(faultfs.KeepSynced())
	d.check(map[block.Key]bool{tiertest.Key(0): true, tiertest.Key(1): true}, keys(0, 2))
}
