package file_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/tiertest"
)

var (
	never   = file.Config{Fsync: file.FsyncNever}
	durable = file.Config{Fsync: file.FsyncFile}
)

// Check that the simulated disk loses unsynced blocks. Otherwise the tests in this file could not fail.
func TestPowerFailureLosesWhatWasNotPromised(t *testing.T) {
	m := newMachine(t, false)
	m.put(m.start(never), tiertest.Key(1))
	m.powerFail(faultfs.KeepSynced())
	if err := get(t, m.start(never).Tier, m.format, tiertest.Key(1)); err == nil {
		t.Error("a block that was never synced survived a power failure")
	}
}

func TestDefectPutMakesDurableWhatIsThere(t *testing.T) {
	for name, reads := range map[string]int{"not read": 0, "read once by this process": 1, "read again": 2} {
		t.Run(name, func(t *testing.T) {
			survives(t, func(m *machine) block.Key {
				key := tiertest.Key(1)
				m.put(m.start(never), key)
				p := m.start(durable)
				for range reads {
					m.must(get(t, p.Tier, m.format, key))
				}
				m.put(p, key)
				return key
			})
		})
	}
}

func TestDefectFolderOfAnotherProcess(t *testing.T) {
	survives(t, func(m *machine) block.Key {
		m.put(m.start(never), bucketKey(7, 1))
		m.put(m.start(durable), bucketKey(7, 2))
		return bucketKey(7, 2)
	})
}

// One Put has created the folder but not yet synced its name. A second Put stores a block in that
// folder.
func TestDefectFolderThatIsNotSyncedYet(t *testing.T) {
	survives(t, func(m *machine) block.Key {
		first, second := m.start(durable), m.start(durable)
		plan := fault.New(1, fault.Nth("sync", 1).Stall()) // the first sync is that of the file
		first.faults.Use(plan)
		wait := m.later(func() error { return first.store(m.Context(), bucketKey(7, 1), image(t, m.format, bucketKey(7, 1))) })
		m.stalled(plan)
		m.put(second, bucketKey(7, 2))
		t.Cleanup(func() {
			if err := wait(); !errors.Is(err, faultfs.ErrCrashed) {
				t.Errorf("the Put that the power failure ended: %v", err)
			}
		})
		m.Cleanup(plan.Release)
		m.disk.PowerFail(faultfs.KeepSynced())
		plan.Release()
		return bucketKey(7, 2)
	})
}

// Two Puts find that the folder does not exist, and create it one after the other.
func TestDefectRacingPutsMakeOneFolder(t *testing.T) {
	for i := range 2 {
		t.Run(fmt.Sprintf("block %d", i+1), func(t *testing.T) {
			survives(t, func(m *machine) block.Key {
				first, second := m.start(durable), m.start(durable)
				plan := fault.New(1, fault.Nth("mkdir", 0).Stall())
				first.faults.Use(plan)
				wait := m.later(func() error {
					return first.store(m.Context(), bucketKey(7, 1), image(t, m.format, bucketKey(7, 1)))
				})
				m.stalled(plan)
				m.put(second, bucketKey(7, 2))
				plan.Release()
				m.must(wait())
				return bucketKey(7, i+1)
			})
		})
	}
}

func TestDefectFreshRoot(t *testing.T) {
	for name, there := range map[string][]string{
		"nothing is there":             nil,
		"a parent that is not durable": {"srv"},
		"itself, not durable":          {"srv", "srv/kv"},
	} {
		t.Run(name, func(t *testing.T) {
			survives(t, func(m *machine) block.Key {
				m.mkdirs(there...)
				m.put(m.start(durable), tiertest.Key(1))
				return tiertest.Key(1)
			})
		})
	}
}

func TestDefectLookupIsNotReadyBeforeItIsDurable(t *testing.T) {
	for name, fails := range map[string]bool{"the sync succeeds": false, "the sync fails": true} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, false)
			key, p := tiertest.Key(1), m.start(durable)
			plan := fault.New(1, fault.Nth("sync", 1).Stall()) // the first sync is that of the file
			if fails {
				plan.Add(fault.Nth("sync", 2).Fail(syscall.EIO))
			}
			p.faults.Use(plan)
			wait := m.later(func() error { return p.store(t.Context(), key, image(t, m.format, key)) })
			m.stalled(plan)
			if st := state(t, p.Tier, key); st != tier.Filling {
				t.Errorf("before it is durable it is %s", st)
			}
			if n, err := p.Retain(t.Context(), []block.Key{key}); n != 0 || err != nil {
				t.Errorf("before it is durable it is retained: %v", err)
			}
			plan.Release()
			err, want := wait(), tier.Ready
			if fails {
				want = tier.Absent
			}
			if st := state(t, p.Tier, key); st != want || (err != nil) != fails {
				t.Errorf("after the Put it is %s; the Put returned %v", st, err)
			}
		})
	}
}

// A process may crash at any sync while it creates a directory. The directory is usable afterwards.
func TestMarkerIsDurableBeforeItsDirectoryIsUsed(t *testing.T) {
	for n := range 40 {
		plan := fault.New(1, fault.Nth("sync", n).Crash())
		for name, s := range survivals() {
			m := newMachine(t, false)
			p, err := m.tryStart(never, plan)
			if err == nil && plan.Injected() > 0 {
				t.Fatal("a crash was not noticed")
			}
			if err == nil {
				m.kill(p)
				return // Open makes fewer syncs
			}
			m.put(m.start(never), tiertest.Key(1))
			m.powerFail(s)
			if p, err := m.tryStart(never, nil); err != nil {
				t.Errorf("after a crash at sync %d and a power failure that %s survived: %v", n, name, err)
			} else {
				m.put(p, tiertest.Key(1))
			}
			plan = fault.New(1, fault.Nth("sync", n).Crash())
		}
	}
	t.Error("Open never completes")
}

// A reader finds a damaged block and moves the file aside. Meanwhile another process has replaced
// the file, so the reader moves the new file and must restore it durably.
func TestBlockThatIsGivenBackIsAsDurableAsItWas(t *testing.T) {
	survives(t, func(m *machine) block.Key {
		key := tiertest.Key(1)
		reader, writer := m.start(durable), m.start(durable)
		m.put(writer, key)
		m.overwrite(path("srv/kv", key))
		plan := fault.New(1, fault.Nth("rename", 0).Stall())
		reader.faults.Use(plan)
		wait := m.later(func() error { return get(t, reader.Tier, m.format, key) })
		m.stalled(plan)
		if err := get(t, writer.Tier, m.format, key); err == nil { // moves the damaged file aside
			t.Error("a damaged block was read")
		}
		m.put(writer, key)
		plan.Release()
		if err := wait(); err == nil {
			t.Error("a damaged block was read")
		}
		return key
	})
}

// A process without fsync finishes a Put late, after a process with fsync has stored the same block
// durably.
func TestDefectLateUnsyncedPutUndoesASyncedOne(t *testing.T) {
	survives(t, func(m *machine) block.Key {
		key := tiertest.Key(1)
		late, first := m.start(never), m.start(durable)
		m.put(late, bucketKey(key[0], 2)) // creates the folder
		plan := fault.New(1, fault.Nth("rename", 0).Stall())
		late.faults.Use(plan)
		wait := m.later(func() error { return late.store(m.Context(), key, image(t, m.format, key)) })
		m.stalled(plan)
		m.put(first, key)
		plan.Release()
		m.must(wait())
		return key
	})
}
