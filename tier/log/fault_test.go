package log_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// ops are the operations that can fail.
var ops = []string{"opendir", "open", "stat", "readdir", "mkdir", "rename", "remove", "read", "write", "fstat", "sync", "lock", "allocate", "truncate", "close"}

// disk is the directory of a log on a simulated disk whose power may fail.
type disk struct {
	*testing.T
	*faultfs.Disk
	f      block.Format
	c      log.Config
	direct bool // see newDirectDisk
}

// disks are constructors of disks. Processes of the first store all blocks from host memory, those
// of the second store half of them directly.
var disks = []func(*testing.T, log.FsyncPolicy) *disk{newDisk, newDirectDisk}

// newDirectDisk is newDisk with processes that store blocks directly.
func newDirectDisk(t *testing.T, policy log.FsyncPolicy) *disk {
	t.Helper()
	d := newDisk(t, policy)
	d.f, d.direct = tiertest.LeafFormat(t), true
	d.c.Formats, d.c.SegmentBytes = block.Formats{d.f}, 256<<10
	return d
}

func newDisk(t *testing.T, policy log.FsyncPolicy) *disk {
	t.Helper()
	f := tiertest.NewFormat(t)
	return &disk{T: t, Disk: faultfs.NewDisk(nil), f: f, c: log.Config{
		Dir: "/srv/kv", Formats: block.Formats{f}, Fsync: policy, SegmentBytes: 128 << 10, SyncEvery: time.Millisecond,
	}}
}

// keep returns a number of bytes that holds 14 blocks and little more.
func (d *disk) keep() int64 {
	if d.direct {
		return 1300 << 10
	}
	return 512 << 10
}

// config returns the configuration of a new process.
func (d *disk) config() log.Config {
	c := d.c
	if d.direct {
		c.Direct = tiertest.NewDirect(d.T)
	}
	return c
}

// run starts a process that opens the tier, calls do, and then closes the tier or dies. It returns
// the joined errors of the tier.
func (d *disk) run(plan *fault.Plan, kill bool, do func(tr *log.Tier) error) error {
	d.Helper()
	process := d.Process()
	defer process.Kill()
	c := d.config()
	c.FS = faultfs.New(process, plan, nil)
	tr, err := log.Open(d.Context(), c)
	if err != nil {
		return err
	}
	err = do(tr)
	if kill {
		process.Kill()
	}
	cerr := tr.Close(context.WithoutCancel(d.Context()))
	if kill {
		cerr = nil
	}
	return errors.Join(err, cerr)
}

// check checks that every promised block can be read, and that all other blocks are sound or
// missing.
func (d *disk) check(promised map[block.Key]bool, all []block.Key) {
	d.Helper()
	err := d.run(nil, false, func(tr *log.Tier) error {
		for _, key := range all {
			states := make([]tier.State, 1)
			if err := tr.Lookup(d.Context(), []block.Key{key}, states); err != nil {
				return err
			}
			err := get(d.T, tr, d.f, key)
			switch {
			case err == nil:
			case promised[key]:
				return fmt.Errorf("a block that was durable is %s: %w", states[0], err)
			case !errors.Is(err, errdefs.ErrNotFound) && !errors.Is(err, errdefs.ErrCorrupt):
				return err
			case states[0] == tier.Ready && d.c.Fsync != log.FsyncNever:
				return fmt.Errorf("a block that is not whole is a hit: %w", err)
			}
		}
		return nil
	})
	if err != nil {
		d.Fatal(err)
	}
}

// Each operation fails once. No read returns a wrong byte, no promised block is lost, no call
// hangs, and the directory can be opened again.
func TestEveryOperationFailsOnce(t *testing.T) {
	for _, disk := range disks {
		eachFailsOnce(t, func(t *testing.T, plan *fault.Plan, _ uint64) {
			failOnce(t, disk(t, log.FsyncAlways), plan, keys(0, 14))
		})
	}
}

// The same test for a log that syncs at intervals and has reached its bound, so that it moves and
// evicts blocks.
func TestEveryOperationFailsOnceAtTheBound(t *testing.T) {
	for _, disk := range disks {
		eachFailsOnce(t, func(t *testing.T, plan *fault.Plan, n uint64) {
			// In the synctest bubble, waits for space take no real time.
			synctest.Test(t, func(t *testing.T) { failOnceAtTheBound(t, disk(t, log.FsyncInterval), plan, n) })
		})
	}
}

// eachFailsOnce calls do with plans that fail operation n of each kind, for every third n from a
// random one on, until no fault is injected.
func eachFailsOnce(t *testing.T, do func(t *testing.T, plan *fault.Plan, n uint64)) {
	t.Helper()
	every := 3
	if testing.Short() {
		every = 6
	}
	if testkit.Race {
		every = 20
	}
	for _, op := range ops {
		for _, kind := range []string{"fails", "half", "full"} {
			if kind == "half" && op != "read" && op != "write" || kind == "full" && op != "write" && op != "allocate" {
				continue
			}
			t.Run(op+" "+kind, func(t *testing.T) {
				t.Parallel()
				first := rand.IntN(every)
				t.Logf("every %d from %d", every, first)
				for n := first; ; n += every {
					rule := fault.Nth(op, n).Fail(unix.EIO)
					switch kind {
					case "half":
						rule = fault.Nth(op, n).Partial(unix.EIO)
					case "full":
						rule = fault.Nth(op, n).Fail(unix.ENOSPC)
					}
					plan := fault.New(1, rule)
					if do(t, plan, uint64(n)); plan.Injected() == 0 {
						break
					}
					if n > 400 {
						t.Fatal("the operation still fails after 400 faults")
					}
				}
			})
		}
	}
}

// failOnce stores, reads, retains and deletes blocks under a plan.
func failOnce(t *testing.T, d *disk, plan *fault.Plan, all []block.Key) {
	t.Helper()
	promised := make(map[block.Key]bool)
	if err := d.run(nil, false, func(tr *log.Tier) error { // store some blocks without faults first
		put(t, tr, d.f, all[:4]...)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, key := range all[:4] {
		promised[key] = true
	}
	_ = d.run(plan, false, func(tr *log.Tier) error {
		for i, key := range all {
			if err := store(t.Context(), tr, key, image(t, d.f, key)); err == nil {
				promised[key] = true
			}
			// Without an injected fault, every stored block is found.
			if err := get(t, tr, d.f, key); err != nil && promised[key] && plan.Injected() == 0 {
				t.Errorf("block %d: %v", i, err)
			}
		}
		if tr.Delete(t.Context(), all[1]) == nil {
			promised[all[1]] = false
		}
		if _, err := tr.GC(t.Context(), d.keep()); err != nil && plan.Injected() == 0 {
			t.Error(err)
		}
		return nil
	})
	d.PowerFail(faultfs.KeepSynced())
	d.check(promised, all)
}

// failOnceAtTheBound promises retained blocks after they are durable. n seeds which unsynced data
// survives the power failure.
func failOnceAtTheBound(t *testing.T, d *disk, plan *fault.Plan, n uint64) {
	t.Helper()
	d.c.SyncEvery = time.Hour // only explicit syncs, so that the durable blocks are known
	all, promised := keys(0, 40), make(map[block.Key]bool)
	if err := d.run(nil, false, func(tr *log.Tier) error {
		put(t, tr, d.f, all[:4]...)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	var pinned []block.Key
	retain := func(tr *log.Tier, key block.Key) {
		if n, _ := tr.Retain(t.Context(), []block.Key{key}); n == 1 {
			pinned = append(pinned, key)
		} else {
			delete(promised, key) // it may be evicted now
		}
	}
	promised[all[0]], promised[all[2]] = true, true
	d.c.MaxBytes = 6 * d.c.SegmentBytes
	_ = d.run(plan, false, func(tr *log.Tier) error {
		defer func() { tr.Release(pinned) }()
		retain(tr, all[0])
		retain(tr, all[2])
		for i, key := range all {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			err := store(ctx, tr, key, image(t, d.f, key))
			if cancel(); err == nil && i%10 == 5 {
				retain(tr, key)
			}
			if i%8 == 7 && log.Checkpoint(tr) == nil {
				kept := make([]bool, len(pinned))
				if err := tr.Kept(t.Context(), pinned, kept); err != nil {
					t.Error(err)
				}
				for k, key := range pinned {
					promised[key] = promised[key] || kept[k]
				}
			}
		}
		if st := tr.Stats(); st.Evictions == 0 && plan.Injected() == 0 {
			t.Errorf("no block was evicted: %+v", st)
		}
		for range 2 { // the first attempt may fail
			if _, err := tr.GC(t.Context(), 2*d.c.SegmentBytes); err != nil && plan.Injected() == 0 {
				t.Error(err)
			}
		}
		return nil
	})
	d.PowerFail(faultfs.KeepSome(n))
	d.c.MaxBytes = 0 // no block is evicted before the check
	d.check(promised, all)
}

// After a power failure, blocks are as durable as the policy promises, and all blocks found are
// sound.
func TestPowerFailure(t *testing.T) {
	for _, policy := range []log.FsyncPolicy{log.FsyncAlways, log.FsyncInterval, log.FsyncNever} {
		t.Run(policy.String(), func(t *testing.T) {
			t.Parallel()
			seeds := uint64(60)
			if testing.Short() {
				seeds = 15
			}
			for seed := range seeds {
				for n, disk := range disks {
					if n == 0 || seed%4 == 0 {
						powerFails(t, disk(t, policy), seed)
					}
				}
			}
		})
	}
}

func powerFails(t *testing.T, d *disk, seed uint64) {
	t.Helper()
	rng, policy := rand.New(rand.NewPCG(seed, 1)), d.c.Fsync
	d.c.MaxBytes = 16 * d.c.SegmentBytes
	all := keys(0, 40)
	promised := make(map[block.Key]bool)
	for range 3 {
		_ = d.run(nil, true, func(tr *log.Tier) error {
			for range 5 + rng.IntN(30) {
				key := all[rng.IntN(len(all))]
				if rng.IntN(6) == 0 {
					if err := tr.Delete(t.Context(), key); err != nil && !errors.Is(err, errdefs.ErrNotFound) {
						t.Error(err)
					}
					delete(promised, key)
					continue
				}
				put(t, tr, d.f, key)
				promised[key] = policy == log.FsyncAlways
			}
			if policy == log.FsyncInterval && rng.IntN(2) == 0 {
				time.Sleep(10 * time.Millisecond)
			}
			return nil
		})
		s := faultfs.KeepSome(seed)
		switch seed % 10 {
		case 0:
			s = faultfs.KeepSynced()
		case 1:
			s = faultfs.KeepAll()
		}
		d.PowerFail(s)
		d.check(promised, all)
	}
}

// A killed process loses no stored block, and deleted blocks stay deleted.
func TestKilledProcessLosesNothing(t *testing.T) {
	for n, policy := range []log.FsyncPolicy{log.FsyncAlways, log.FsyncInterval, log.FsyncNever, log.FsyncAlways, log.FsyncNever} {
		d := disks[n/3](t, policy)
		all := keys(0, 30)
		promised := make(map[block.Key]bool)
		_ = d.run(nil, true, func(tr *log.Tier) error {
			put(t, tr, d.f, all...)
			for _, key := range all {
				promised[key] = true
			}
			if err := tr.Delete(t.Context(), all[7]); err != nil {
				t.Error(err)
			}
			delete(promised, all[7])
			return nil
		})
		d.check(promised, all)
		if err := d.run(nil, false, func(tr *log.Tier) error {
			if err := get(t, tr, d.f, all[7]); !errors.Is(err, errdefs.ErrNotFound) {
				t.Errorf("a block that was deleted: %v", err)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
}

// On a full disk the log evicts blocks below its bound. Without a bound it returns an error at
// once.
func TestFullDisk(t *testing.T) {
	d := newDisk(t, log.FsyncNever)
	d.c.MaxBytes = 32 * d.c.SegmentBytes
	d.SetLimit(10 * d.c.SegmentBytes)
	if err := d.run(nil, false, func(tr *log.Tier) error {
		for i := range 120 {
			put(t, tr, d.f, tiertest.Key(i))
		}
		if st := tr.Stats(); st.Paused != nil || st.Evictions == 0 {
			t.Errorf("%+v", st)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	d = newDisk(t, log.FsyncNever)
	d.SetLimit(3*d.c.SegmentBytes + 8192)
	_ = d.run(nil, false, func(tr *log.Tier) error {
		var err error
		for i := 0; err == nil && i < 100; i++ {
			err = tr.Put(t.Context(), tiertest.Key(i), image(t, d.f, tiertest.Key(i)))
		}
		if st := tr.Stats(); !errors.Is(err, errdefs.ErrNoSpace) || st.Paused == nil {
			t.Errorf("%v, %+v", err, st)
		}
		return get(t, tr, d.f, tiertest.Key(0))
	})
}
