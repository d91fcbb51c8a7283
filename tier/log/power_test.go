package log_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// session is a process that has the tier of a disk open, until it dies.
type session struct {
	*disk
	process *faultfs.Process
	fs      *faultfs.FS
	tr      *log.Tier
}

// begin opens the tier of a disk that syncs nothing by itself.
func (d *disk) begin() *session {
	d.Helper()
	s := &session{disk: d, process: d.Process()}
	s.fs = faultfs.New(s.process, nil, nil)
	c := d.config()
	c.FS, c.SyncEvery = s.fs, time.Hour
	var err error
	if s.tr, err = log.Open(d.Context(), c); err != nil {
		d.Fatal(err)
	}
	return s
}

func (s *session) die() {
	s.process.Kill()
	_ = s.tr.Close(context.WithoutCancel(s.Context()))
}

func (s *session) checkpoint() {
	s.Helper()
	if err := log.Checkpoint(s.tr); err != nil {
		s.Error(err)
	}
}

func (s *session) retain(key block.Key) {
	s.Helper()
	if n, err := s.tr.Retain(s.Context(), []block.Key{key}); n != 1 || err != nil {
		s.Error(n, err)
	}
}

// collect lets the segments have at most so many bytes, if it can.
func (s *session) collect(most int64) { _, _ = s.tr.GC(s.Context(), most) }

// everySeed runs a test for as many ways in which power fails.
func everySeed(t *testing.T, policy log.FsyncPolicy, do func(d *disk, power faultfs.Survival)) {
	t.Helper()
	seeds := uint64(30)
	if testkit.Race {
		seeds = 4 // each seed is the same work of the same goroutines
	}
	for seed := range seeds {
		for n, disk := range disks {
			if n > 0 && seed%4 > 0 {
				continue
			}
			t.Run(fmt.Sprint(seed, n), func(t *testing.T) { do(disk(t, policy), faultfs.KeepSome(seed)) })
		}
	}
}

// A block that was durable was lost: the segment that it was moved out of went before the copy was
// durable.
func TestDefectSegmentGoesBeforeItsCopiesAreDurable(t *testing.T) {
	// No more, so that no round finds the segment wasted
	key, busy := tiertest.Key(1), tiertest.Key(0)
	// stored ends with a new process, that has verified nothing, and key retained.
	stored := func(d *disk) *session {
		s := d.begin()
		put(d.T, s.tr, d.f, busy, key)
		s.checkpoint()
		s.die()
		s = d.begin()
		s.retain(key)
		return s
	}
	// moved empties the segment, but for a block that is in use meanwhile.
	moved := func(s *session) {
		plan := fault.New(1, fault.Nth("read", 0).Stall())
		s.fs.Use(plan)
		done := make(chan error, 1)
		go func() { done <- s.tr.Put(s.Context(), busy, image(s.T, s.f, busy)) }()
		if err := plan.Await(s.Context(), 1); err != nil {
			s.Fatal(err)
		}
		s.collect(1)
		plan.Release()
		if err := <-done; err != nil {
			s.Error(err)
		}
		s.collect(1 << 30) // ends the segment with the copy
	}
	emptied := func(s *session) {
		for range 3 { // it may take more than one
			if log.Segments(s.tr) > 1 {
				s.collect(log.Used(s.tr) - 1)
			}
		}
	}
	for name, do := range map[string]func(s *session){
		"a block is in use": func(s *session) { moved(s); emptied(s) },
		"its sync fails": func(s *session) {
			for n := range 4 { // it is one of these
				s.fs.Use(fault.New(1, fault.Nth("sync", n).Fail(nil)))
				before := log.Segments(s.tr)
				if s.collect(log.Used(s.tr) - 1); log.Segments(s.tr) > before {
					break // it was moved, and no more than that
				}
			}
			s.fs.Use(nil)
			s.collect(1 << 30)
			emptied(s)
		},
		"another's sync fails": func(s *session) {
			moved(s)
			s.fs.Use(fault.New(1, fault.Nth("sync", 0).Fail(nil)))
			if err := log.Checkpoint(s.tr); err == nil {
				s.Error("no sync failed")
			}
			s.fs.Use(nil)
			emptied(s)
		},
		"a checkpoint has a copy that is not durable": func(s *session) {
			moved(s)
			s.fs.Use(fault.New(1, fault.Nth("sync", 0).Fail(nil)))
			if err := log.Checkpoint(s.tr); err == nil {
				s.Error("no sync failed")
			}
			s.checkpoint()
		},
	} {
		t.Run(name, func(t *testing.T) {
			everySeed(t, log.FsyncInterval, func(d *disk, power faultfs.Survival) {
				s := stored(d)
				do(s)
				d.PowerFail(power)
				s.die()
				d.check(map[block.Key]bool{key: true}, keys(0, 2))
			})
		})
	}
}

// A block that a power failure has torn was a hit: a checkpoint covered it though its sync had
// failed.
func TestDefectCheckpointAfterAFailedSyncHidesTornBlocks(t *testing.T) {
	everySeed(t, log.FsyncInterval, func(d *disk, power faultfs.Survival) {
		s := d.begin()
		put(d.T, s.tr, d.f, tiertest.Key(0))
		s.checkpoint()
		put(d.T, s.tr, d.f, keys(1, 4)...)
		s.fs.Use(fault.New(1, fault.Nth("sync", 0).Fail(nil)))
		if err := log.Checkpoint(s.tr); err == nil {
			t.Error("no sync failed")
		}
		s.checkpoint()
		d.PowerFail(power)
		s.die()
		for range 2 { // and to the next, which has the checkpoint of the first
			d.check(map[block.Key]bool{tiertest.Key(0): true}, keys(0, 4))
		}
	})
}

// A group that could not be written was torn by a power failure, and was a hit: a later header
// stated that all before it was durable.
func TestDefectTornGroupIsTakenForDurable(t *testing.T) {
	half, sync := fault.Nth("write", 0).Partial(nil), fault.Nth("sync", 0).Fail(nil)
	for name, rules := range map[string][]fault.Rule{"it is torn": {half}, "it is not synced": {sync}, "it is not undone": {half, sync}} {
		for _, policy := range []log.FsyncPolicy{log.FsyncAlways, log.FsyncInterval} {
			t.Run(name+" "+policy.String(), func(t *testing.T) {
				everySeed(t, policy, func(d *disk, power faultfs.Survival) {
					s := d.begin()
					put(d.T, s.tr, d.f, tiertest.Key(0))
					s.fs.Use(fault.New(1, rules...))
					_ = s.tr.Put(t.Context(), tiertest.Key(1), image(t, d.f, tiertest.Key(1)))
					promised := map[block.Key]bool{tiertest.Key(0): policy == log.FsyncAlways}
					for i := 2; i < 5; i++ {
						_ = log.Sync(s.tr)
						put(d.T, s.tr, d.f, tiertest.Key(i))
						promised[tiertest.Key(i)] = policy == log.FsyncAlways
					}
					d.PowerFail(power)
					s.die()
					for range 2 {
						d.check(promised, keys(0, 5))
					}
				})
			})
		}
	}
}

// A block was lost that was moved while a checkpoint was written: that covered where it had been,
// and did not have where it was.
func TestDefectCheckpointMissesWhatIsMovedMeanwhile(t *testing.T) {
	seeds := uint64(30)
	if testkit.Race {
		seeds = 4 // each seed is the same work of the same goroutines
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			d, key := newDisk(t, log.FsyncInterval), tiertest.Key(1)
			s := d.begin()
			put(t, s.tr, d.f, keys(0, 4)...)
			s.checkpoint()
			s.retain(key)
			s.collect(1 << 30) // ends the segment
			writing, syncing := make(chan struct{}), make(chan struct{})
			var begun atomic.Bool
			s.fs.Forbid(func(op, path string) error {
				switch {
				case op == "open" && strings.HasSuffix(path, "/index.tmp"): // the checkpoint has read the ends and synced
					<-writing
				case op == "sync" && strings.HasSuffix(path, "/seg-0000000000000002") && begun.Swap(true):
					<-syncing // the copy
				}
				return nil
			})
			var both sync.WaitGroup
			both.Go(s.checkpoint)
			synctest.Wait()
			both.Go(func() { s.collect(log.Used(s.tr) - 1) }) // moves the block
			synctest.Wait()
			close(writing)
			synctest.Wait()
			d.PowerFail(faultfs.KeepSome(seed))
			close(syncing)
			both.Wait()
			s.die()
			d.check(map[block.Key]bool{key: true}, keys(0, 4))
		})
	}
}
