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

// session is a process that has the tier of a disk open until it dies.
type session struct {
	*disk
	process *faultfs.Process
	fs      *faultfs.FS
	tr      *log.Tier
}

// begin opens the tier of a disk. The tier makes no periodic syncs.
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

// collect evicts blocks until the segments use at most the given bytes, if possible.
func (s *session) collect(most int64) { _, _ = s.tr.GC(s.Context(), most) }

// everySeed runs do for different outcomes of a power failure.
func everySeed(t *testing.T, policy log.FsyncPolicy, do func(d *disk, power faultfs.Survival)) {
	t.Helper()
	seeds := uint64(30)
	if testkit.Race {
		seeds = 4 // each seed runs the same code in the same goroutines
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

// A segment was removed before the copies of its blocks were durable, so a durable block was lost.
func TestDefectSegmentGoesBeforeItsCopiesAreDurable(t *testing.T) {
	// Only two blocks, so that the segment is never compacted for wasted space.
	key, busy := tiertest.Key(1), tiertest.Key(0)
	// stored returns a new process that has verified no block, with key stored and retained.
	stored := func(d *disk) *session {
		s := d.begin()
		put(d.T, s.tr, d.f, busy, key)
		s.checkpoint()
		s.die()
		s = d.begin()
		s.retain(key)
		return s
	}
	// moved empties the segment, except for a block that is being read meanwhile.
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
		for range 3 { // several rounds may be needed
			if log.Segments(s.tr) > 1 {
				s.collect(log.Used(s.tr) - 1)
			}
		}
	}
	for name, do := range map[string]func(s *session){
		"a block is in use": func(s *session) { moved(s); emptied(s) },
		"its sync fails": func(s *session) {
			for n := range 4 { // make each of the first four syncs fail, until a collection moves only the block
				s.fs.Use(fault.New(1, fault.Nth("sync", n).Fail(nil)))
				before := log.Segments(s.tr)
				if s.collect(log.Used(s.tr) - 1); log.Segments(s.tr) > before {
					break // the block was moved and nothing else
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

// A checkpoint covered blocks whose sync had failed. After a power failure these torn blocks were
// hits.
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
		for range 2 { // check two processes, of which the second reads the checkpoint of the first
			d.check(map[block.Key]bool{tiertest.Key(0): true}, keys(0, 4))
		}
	})
}

// A group failed to be written, but a later header stated that all bytes before it were durable.
// After a power failure the torn group was a hit.
func TestDefectTornGroupIsTakenForDurable(t *testing.T) {
	half, sync := fault.Nth("write", 0).Partial(nil), fault.Nth("sync", 0).Fail(nil)
	for name, rules := range map[string][]fault.Rule{"torn": {half}, "not synced": {sync}, "not undone": {half, sync}} {
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

// A process found a torn block and wrote no checkpoint. The headers of its groups stated that all
// earlier bytes were durable, so the torn block was a hit for the next process.
func TestDefectTornBlockIsAHitForTheNextProcess(t *testing.T) {
	everySeed(t, log.FsyncInterval, func(d *disk, power faultfs.Survival) {
		s := d.begin()
		put(d.T, s.tr, d.f, keys(0, 4)...)
		d.PowerFail(power)
		s.die()
		s = d.begin()
		put(d.T, s.tr, d.f, tiertest.Key(4))
		if err := log.Sync(s.tr); err != nil {
			t.Error(err)
		}
		put(d.T, s.tr, d.f, tiertest.Key(5))
		s.die()
		d.check(map[block.Key]bool{tiertest.Key(4): true, tiertest.Key(5): true}, keys(0, 6))
	})
}

// A block was moved while a checkpoint was written. The checkpoint covered the old position and did
// not contain the new one, so the block was lost.
func TestDefectCheckpointMissesWhatIsMovedMeanwhile(t *testing.T) {
	seeds := uint64(30)
	if testkit.Race {
		seeds = 4 // each seed runs the same code in the same goroutines
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
					<-syncing // sync of the copy
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
