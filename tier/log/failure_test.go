package log_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// A block whose write failed was found, at once or by the next process.
func TestDefectFailedWriteIsFound(t *testing.T) {
	for name, op := range map[string]string{"write": "write", "half": "write", "sync": "sync"} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t, log.FsyncAlways)
			key := tiertest.Key(1)
			_ = d.run(nil, true, func(tr *log.Tier) error {
				put(t, tr, d.f, tiertest.Key(0))
				return nil
			})
			plan := fault.New(1)
			_ = d.run(plan, true, func(tr *log.Tier) error {
				put(t, tr, d.f, tiertest.Key(2)) // creates a segment
				rule := fault.Nth(op, int(plan.Seen(op)))
				if name == "half" {
					plan.Add(rule.Partial(nil))
				} else {
					plan.Add(rule.Fail(nil))
				}
				if err := tr.Put(t.Context(), key, image(t, d.f, key)); !errors.Is(err, fault.ErrInjected) {
					t.Errorf("put: %v", err)
				}
				if s := state(t, tr, key); s != tier.Absent {
					t.Errorf("a block whose writing failed is %s", s)
				}
				return nil
			})
			_ = d.run(nil, true, func(tr *log.Tier) error {
				if s := state(t, tr, key); s != tier.Absent {
					t.Errorf("a block whose writing failed is %s to the next", s)
				}
				put(t, tr, d.f, key)
				return get(t, tr, d.f, key)
			})
			d.check(map[block.Key]bool{tiertest.Key(0): true, key: true, tiertest.Key(2): true}, keys(0, 3))
		})
	}
}

// A checkpoint covered bytes that were not durable, and a power failure destroyed them.
func TestDefectCheckpointCoversWhatIsNotDurable(t *testing.T) {
	d := newDisk(t, log.FsyncInterval)
	d.c.SyncEvery = time.Hour
	_ = d.run(nil, true, func(tr *log.Tier) error {
		put(t, tr, d.f, keys(0, 5)...)
		if err := log.Checkpoint(tr); err != nil {
			t.Error(err)
		}
		d.PowerFail(faultfs.KeepSynced())
		return nil
	})
	promised := make(map[block.Key]bool)
	for _, key := range keys(0, 5) {
		promised[key] = true
	}
	d.check(promised, keys(0, 5))
}

// GC closed a segment during a read.
func TestDefectSegmentIsClosedUnderARead(t *testing.T) {
	c := config(t)
	f := c.Formats[0]
	faults := faultfs.New(dirfs.OS(), nil, nil)
	c.FS = faults
	tr := open(t, c)
	put(t, tr, f, keys(0, 3)...)
	plan := fault.New(1, fault.Nth("read", 1).Stall())
	faults.Use(plan)
	done := make(chan error, 1)
	go func() { done <- get(t, tr, f, tiertest.Key(1)) }()
	if err := plan.Await(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if n, err := tr.GC(t.Context(), 0); n != 3 || err != nil {
		t.Errorf("collect: %d, %v", n, err)
	}
	plan.Release()
	if err := <-done; err != nil {
		t.Errorf("a read that had begun: %v", err)
	}
	if err := get(t, tr, f, tiertest.Key(1)); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("a block that was evicted: %v", err)
	}
}

// A deleted block came back: the segment with the deletion had no live blocks, so it was removed
// before the block's segment.
func TestDefectDeletedBlockComesBack(t *testing.T) {
	d := newDisk(t, log.FsyncAlways)
	_ = d.run(nil, true, func(tr *log.Tier) error {
		put(t, tr, d.f, keys(0, 4)...)
		collect := func(most int64) {
			if n, err := tr.GC(t.Context(), most); n != 0 || err != nil {
				t.Errorf("collect: %d, %v", n, err)
			}
		}
		collect(1 << 30) // ends the segment
		if err := tr.Delete(t.Context(), tiertest.Key(1)); err != nil {
			t.Error(err)
		}
		collect(1 << 30)
		if n, err := tr.Retain(t.Context(), []block.Key{tiertest.Key(0), tiertest.Key(2), tiertest.Key(3)}); n != 3 || err != nil {
			t.Error(n, err)
		}
		collect(log.Used(tr) - 1) // removes the segment with the block or that with the deletion
		return nil
	})
	err := d.run(nil, false, func(tr *log.Tier) error {
		if s := state(t, tr, tiertest.Key(1)); s != tier.Absent {
			t.Errorf("a block that was deleted is %s", s)
		}
		return get(t, tr, d.f, tiertest.Key(2))
	})
	if err != nil {
		t.Error(err)
	}
}

// GC evicted retained blocks.
func TestDefectRetainedBlockIsEvicted(t *testing.T) {
	c := config(t)
	f := c.Formats[0]
	tr := open(t, c)
	put(t, tr, f, keys(0, 6)...)
	pinned := keys(2, 4)
	if n, err := tr.Retain(context.WithoutCancel(t.Context()), pinned); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := tr.GC(t.Context(), 1); n != 4 || err != nil {
		t.Errorf("collect: %d, %v", n, err)
	}
	for _, key := range pinned {
		if err := get(t, tr, f, key); err != nil {
			t.Error(err)
		}
	}
	tr.Release(pinned)
}

// GC did not end if the retained blocks filled more than a segment. It moved the same blocks again
// and again.
func TestDefectCollectMovesTheSameBlocksForEver(t *testing.T) {
	c := config(t)
	tr := open(t, c)
	pinned := keys(0, 40)
	put(t, tr, c.Formats[0], pinned...)
	if n, err := tr.Retain(t.Context(), pinned); n != len(pinned) || err != nil {
		t.Fatal(n, err)
	}
	defer tr.Release(pinned)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience())
	defer cancel()
	if n, err := tr.GC(ctx, 1); n != 0 || err != nil {
		t.Error(n, err)
	}
}

// While all blocks were retained and a write waited for space, the log read and moved blocks again
// and again without a pause.
func TestDefectCollectorDoesNotPause(t *testing.T) {
	d := newDisk(t, log.FsyncNever)
	d.c.MaxBytes = 4 * d.c.SegmentBytes
	s := d.begin()
	defer s.die()
	var pinned []block.Key
	var reads atomic.Int64
	put := func(i int, patience time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		return s.tr.Put(ctx, tiertest.Key(i), image(t, d.f, tiertest.Key(i)))
	}
	for i := 0; put(i, 300*time.Millisecond) == nil; i++ {
		s.retain(tiertest.Key(i))
		pinned = append(pinned, tiertest.Key(i))
	}
	s.fs.Forbid(func(op, _ string) error {
		if op == "read" {
			reads.Add(1)
		}
		return nil
	})
	if err := put(len(pinned), 2*time.Second); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("put with everything retained: %v", err)
	}
	// At most twelve rounds, each of which reads the group, the header and the block.
	if n := reads.Load(); n > 12*4*int64(len(pinned)) {
		t.Errorf("%d reads of %d blocks", n, len(pinned))
	}
	s.tr.Release(pinned)
}
