package log_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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

func state(t *testing.T, tr *log.Tier, key block.Key) tier.State {
	t.Helper()
	states := make([]tier.State, 1)
	if err := tr.Lookup(t.Context(), []block.Key{key}, states); err != nil {
		t.Fatal(err)
	}
	return states[0]
}

// Only the first shard of a block was checked, so a damaged block was reported as a hit.
func TestDefect1DamageAnywhereIsNoHit(t *testing.T) {
	for _, f := range []block.Format{tiertest.NewFormat(t), bigFormat(t)} {
		c := config(t)
		c.Formats = block.Formats{f}
		tr := open(t, c)
		put(t, tr, f, tiertest.Key(1))
		closeTier(t, tr)
		info, err := os.Stat(segmentFiles(t, c.Dir)[0])
		if err != nil {
			t.Fatal(err)
		}
		flip(t, segmentFiles(t, c.Dir)[0], info.Size()-1) // in the padding of the last shard
		tr = open(t, c)
		if err := get(t, tr, f, tiertest.Key(1)); !errors.Is(err, errdefs.ErrCorrupt) {
			t.Errorf("get: %v", err)
		}
		if s := state(t, tr, tiertest.Key(1)); s != tier.Absent {
			t.Errorf("a block that failed its check is %s", s)
		}
		bad, err := os.ReadDir(filepath.Join(c.Dir, "quarantine"))
		if err != nil || len(bad) != 1 {
			t.Errorf("quarantine has %v, %v", bad, err)
		}
		put(t, tr, f, tiertest.Key(1))
		if err := get(t, tr, f, tiertest.Key(1)); err != nil {
			t.Error(err)
		}
	}
}

// If all blocks were retained, the search for space never ended.
func TestDefect3PutEndsWhileEverythingIsRetained(t *testing.T) {
	c := config(t)
	f := c.Formats[0]
	c.MaxBytes = 4 * segmentBytes
	tr := open(t, c)
	var pinned []block.Key
	var err error
	for i := 0; err == nil && i < 1000; i++ {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if err = tr.Put(ctx, tiertest.Key(i), image(t, f, tiertest.Key(i))); err == nil {
			if n, rerr := tr.Retain(t.Context(), []block.Key{tiertest.Key(i)}); n == 1 && rerr == nil {
				pinned = append(pinned, tiertest.Key(i))
			}
		}
		cancel()
	}
	if !errors.Is(err, errdefs.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("put with everything retained: %v", err)
	}
	for _, key := range pinned {
		if err := get(t, tr, f, key); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	e := image(t, f, tiertest.Key(5000))
	go func() { done <- tr.Put(t.Context(), tiertest.Key(5000), e) }()
	tr.Release(pinned)
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(testkit.Patience()):
		t.Error("the Put waits although there is space")
	}
}

// A read that had timed out overwrote a buffer that the caller had already reused.
func TestDefect5GetReturnsWhenNothingReads(t *testing.T) {
	c := config(t)
	f := c.Formats[0]
	faults := faultfs.New(dirfs.OS(), nil, nil)
	c.FS = faults
	tr := open(t, c)
	put(t, tr, f, tiertest.Key(1))
	plan := fault.New(1, fault.Nth("read", 1).Stall())
	faults.Use(plan)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	dst := tiertest.Buffer(t, f.Layout.ImageBytes())
	go func() { done <- tr.Get(ctx, tiertest.Key(1), dst) }()
	if err := plan.Await(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case err := <-done:
		t.Fatalf("Get returned before its read had ended: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	short, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	if err := tr.Close(short); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("close while something reads: %v", err)
	}
	plan.Release()
	if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A dump completed before its blocks were durable.
func TestDefect6PutIsDurableWhenItReturns(t *testing.T) {
	d := newDisk(t, log.FsyncAlways)
	_ = d.run(nil, true, func(tr *log.Tier) error {
		put(t, tr, d.f, keys(0, 3)...)
		d.PowerFail(faultfs.KeepSynced())
		return nil
	})
	d.check(map[block.Key]bool{tiertest.Key(0): true, tiertest.Key(1): true, tiertest.Key(2): true}, keys(0, 3))
}

// A sync failed, and the next sync reported success for the same data.
func TestDefect6FailedSyncIsNotForgotten(t *testing.T) {
	d := newDisk(t, log.FsyncInterval)
	d.c.SyncEvery = time.Hour
	process := d.Process()
	defer process.Kill()
	c := d.c
	faults := faultfs.New(process, nil, nil)
	c.FS = faults
	tr := open(t, c)
	put(t, tr, d.f, tiertest.Key(1))
	faults.Use(fault.New(1, fault.Nth("sync", 0).Fail(nil)))
	if err := log.Checkpoint(tr); !errors.Is(err, fault.ErrInjected) {
		t.Errorf("a sync that fails: %v", err)
	}
	kept := make([]bool, 1)
	if err := tr.Kept(t.Context(), keys(1, 2), kept); err != nil || kept[0] {
		t.Errorf("a block that may not be durable is kept: %v, %v", kept[0], err)
	}
	if err := tr.Pin(t.Context(), keys(1, 2)); !errors.Is(err, fault.ErrInjected) {
		t.Errorf("a pin of a block that may not be durable: %v", err)
	}
	put(t, tr, d.f, tiertest.Key(1)) // the block is stored again
	if st := tr.Stats(); st.Puts != 2 {
		t.Errorf("%+v", st)
	}
	if err := log.Checkpoint(tr); err != nil {
		t.Error(err)
	}
	d.PowerFail(faultfs.KeepSynced())
	_ = tr.Close(t.Context())
	d.check(map[block.Key]bool{tiertest.Key(1): true}, keys(1, 2))
}

// A block may be evicted between lookup and load. A concurrent read returns the right bytes or a
// miss, never wrong bytes.
func TestDefect7ReadsRaceWithEviction(t *testing.T) {
	c := config(t)
	f := c.Formats[0]
	c.MaxBytes = 6 * segmentBytes
	tr := open(t, c)
	n := 300
	if testing.Short() {
		n = 200
	}
	var readers, writer sync.WaitGroup
	stop := make(chan struct{})
	for r := range 2 {
		readers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := get(t, tr, f, tiertest.Key((i*7+r)%n)); err != nil && !errors.Is(err, errdefs.ErrNotFound) {
					t.Error(err)
					return
				}
			}
		})
	}
	writer.Go(func() {
		for i := range n {
			if err := tr.Put(t.Context(), tiertest.Key(i), image(t, f, tiertest.Key(i))); err != nil {
				t.Error(err)
			}
		}
	})
	writer.Wait()
	close(stop)
	readers.Wait()
	if st := tr.Stats(); st.Evictions == 0 || st.Corrupt != 0 || st.Errors != 0 {
		t.Errorf("%+v", st)
	}
}

// A directory may hold keys of one identity only; a tier with another identity is refused.
func TestDefect9OtherIdentityIsRefused(t *testing.T) {
	c := config(t)
	closeTier(t, open(t, c))
	other := c
	f := c.Formats[0]
	f.Identity[0]++
	other.Formats = block.Formats{f}
	if _, err := log.Open(t.Context(), other); !errors.Is(err, errdefs.ErrMismatch) || !strings.Contains(err.Error(), "identity") {
		t.Errorf("open with another identity: %v", err)
	}
}

// A write that hangs must not block later writes beyond their contexts.
func TestDefectPutBehindAHungWriteEndsWithItsContext(t *testing.T) {
	d := newDisk(t, log.FsyncInterval)
	s := d.begin()
	defer s.die()
	put(t, s.tr, d.f, tiertest.Key(0))
	plan := fault.New(1, fault.Nth("write", 0).Stall())
	s.fs.Use(plan)
	hung := make(chan error, 1)
	go func() { hung <- s.tr.Put(t.Context(), tiertest.Key(1), image(t, d.f, tiertest.Key(1))) }()
	if err := plan.Await(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func(ctx context.Context) error{
		"put":    func(ctx context.Context) error { return s.tr.Put(ctx, tiertest.Key(2), image(t, d.f, tiertest.Key(2))) },
		"delete": func(ctx context.Context) error { return s.tr.Delete(ctx, tiertest.Key(0)) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- call(ctx) }()
		select {
		case err := <-ended:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(testkit.Patience()):
			t.Errorf("%s waits for a write that hangs", name)
		}
	}
	plan.Release()
	if err := <-hung; err != nil {
		t.Error(err)
	}
	put(t, s.tr, d.f, tiertest.Key(3))
	if got := []tier.State{state(t, s.tr, tiertest.Key(0)), state(t, s.tr, tiertest.Key(1)), state(t, s.tr, tiertest.Key(2))}; !slices.Equal(got, []tier.State{tier.Ready, tier.Ready, tier.Absent}) {
		t.Errorf("afterwards they are %v", got)
	}
}
