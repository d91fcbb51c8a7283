package cache_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// Each test reproduces a defect that is known from KV-block caches. Package tiertest checks most of
// them for every tier.

// TestDefectFailedOrEvictedBlockReportsHit: a failed or evicted block was still reported as a hit,
// because the lookup checked shard 0 only.
func TestDefectFailedOrEvictedBlockReportsHit(t *testing.T) {
	f := tiertest.NewFormat(t)
	c := open(t, f, 2)
	defer closeTier(t, c)
	noHit := func(what string, i int) {
		t.Helper()
		states := make([]tier.State, 1)
		if err := c.Lookup(t.Context(), tiertest.Keys(i), states); err != nil || states[0] == tier.Ready {
			t.Errorf("%s: lookup answers %s, %v", what, states[0], err)
		}
		if n, err := c.Retain(t.Context(), tiertest.Keys(i)); n != 0 || err != nil {
			t.Errorf("%s: retain answers %v, %v", what, n, err)
		}
	}
	fill := reserve(t, c, 0)
	tiertest.Seal(t, f, fill.Extent().Bytes(), tiertest.Key(0), 0)
	noHit("filled, not published", 0)
	fill.Abort(errors.New("the load failed"))
	noHit("failed", 0)
	for i := range 3 {
		store(t, c, f, 10+i).Release()
	}
	noHit("evicted", 10)
	if _, err := c.Open(t.Context(), tiertest.Key(10)); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("open of an evicted block: %v", err)
	}
}

// TestDefectEndedFillWritesAnothersSums: a fill that had ended recorded the checksums of its slot,
// which already belonged to another fill.
func TestDefectEndedFillWritesAnothersSums(t *testing.T) {
	f := tiertest.NewFormat(t)
	c := open(t, f, 1)
	defer closeTier(t, c)
	first := reserve(t, c, 0)
	first.Abort(errors.New("the cache refused it"))
	second := reserve(t, c, 0)
	defer second.Abort(errors.New("the test is over"))
	if second.Index() != first.Index() {
		t.Fatal("the second fill has another slot: nothing is tested")
	}
	before := slices.Clone(c.SumsOf(second.Index()))
	tiertest.Seal(t, f, second.Extent().Bytes(), tiertest.Key(0), 1)
	if _, err := first.Publish(); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("an ended fill is published: %v", err)
	}
	if got := c.SumsOf(second.Index()); !slices.Equal(got, before) {
		t.Errorf("the checksums of the slot became %x", got)
	}
}

// TestDefectWaiterSpinsWhenLoaderDies: a waiter spun forever after the loader of a shared block
// died. In a synctest bubble, time does not advance while a goroutine spins.
func TestDefectWaiterSpinsWhenLoaderDies(t *testing.T) {
	f := tiertest.NewFormat(t)
	synctest.Test(t, func(t *testing.T) {
		c := open(t, f, 2)
		defer closeTier(t, c)
		died := errors.New("the loader died")
		fill := reserve(t, c, 0)
		errs := make(chan error, 4)
		for range cap(errs) {
			go func() {
				_, err := c.Open(t.Context(), tiertest.Key(0))
				errs <- err
			}()
		}
		time.Sleep(time.Hour)
		fill.Abort(died)
		for range cap(errs) {
			if err := <-errs; !errors.Is(err, died) || !errors.Is(err, errdefs.ErrNotFound) {
				t.Errorf("open: %v", err)
			}
		}
		// A fill that is neither published nor aborted does not delay waiters beyond their
		// contexts. Close reports it.
		fill = reserve(t, c, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := c.Open(ctx, tiertest.Key(1)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("open: %v", err)
		}
		if err := c.Close(context.WithoutCancel(t.Context())); !errors.Is(err, errdefs.ErrBusy) || !strings.Contains(err.Error(), "1 slots being filled (the oldest for 1m0s)") {
			t.Errorf("close with a forgotten filling: %v", err)
		}
		fill.Abort(died)
	})
}

// TestDefectAllocationSpinsWhenEveryBufferIsReferenced: the search for a slot never ended if every
// slot was referenced.
func TestDefectAllocationSpinsWhenEveryBufferIsReferenced(t *testing.T) {
	f := tiertest.NewFormat(t)
	synctest.Test(t, func(t *testing.T) {
		c := open(t, f, 2)
		defer closeTier(t, c)
		one, two := store(t, c, f, 1), store(t, c, f, 2)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		if _, err := c.Reserve(ctx, tiertest.Key(3)); !errors.Is(err, errdefs.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("reserve: %v", err)
		}
		if d := time.Since(begin); d != time.Minute {
			t.Errorf("the call returned after %s", d)
		}
		time.AfterFunc(time.Hour, one.Release)
		fill := reserve(t, c, 3)
		if fill.Index() != one.Index() || time.Since(begin) != time.Hour+time.Minute {
			t.Errorf("slot %d after %s", fill.Index(), time.Since(begin))
		}
		fill.Abort(nil)
		two.Release()
	})
}

// TestDefectDumpSkipsBlockThatAnotherLeaseHas: a dump skipped a block that another caller was
// filling, and reported success. It must get an error, wait for the result, and fill the block
// itself if the other fill fails.
func TestDefectDumpSkipsBlockThatAnotherLeaseHas(t *testing.T) {
	f := tiertest.NewFormat(t)
	synctest.Test(t, func(t *testing.T) {
		c := open(t, f, 2)
		defer closeTier(t, c)
		other := reserve(t, c, 1)
		if _, err := c.Reserve(t.Context(), tiertest.Key(1)); !errors.Is(err, errdefs.ErrExists) {
			t.Errorf("reserve a block that another caller fills: %v, want ErrExists", err)
		}
		src := tiertest.Buffer(t, f.Layout.ImageBytes())
		tiertest.Seal(t, f, src.Bytes(), tiertest.Key(1), 0)
		done := make(chan error, 1)
		go func() { done <- c.Put(t.Context(), tiertest.Key(1), src) }()
		synctest.Wait()
		if len(done) != 0 {
			t.Fatalf("put answered %v while the block was not there", <-done)
		}
		other.Abort(errors.New("the other died"))
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		slot, err := c.Open(t.Context(), tiertest.Key(1))
		if err != nil {
			t.Fatal(err)
		}
		slot.Release()
	})
}

// TestDefectFailedTaskLosesItsCause: the cause of a failed fill was lost. Waiting and later callers
// must get it.
func TestDefectFailedTaskLosesItsCause(t *testing.T) {
	f := tiertest.NewFormat(t)
	c := open(t, f, 2)
	defer closeTier(t, c)
	cause := errors.New("read of layer 17: input/output error")
	reserve(t, c, 1).Abort(cause)
	for range 2 {
		if _, err := c.Open(t.Context(), tiertest.Key(1)); !errors.Is(err, cause) || !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("open: %v", err)
		}
	}
}

// TestManyLoadersOneFill checks that if many callers need a missing block, one of them fills it.
func TestManyLoadersOneFill(t *testing.T) {
	const workers, rounds = 8, 30
	f := tiertest.NewFormat(t)
	c := open(t, f, 4)
	defer closeTier(t, c)
	for round := range rounds {
		var mu sync.Mutex
		fills := 0
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for {
					slot, err := c.Open(t.Context(), tiertest.Key(round))
					if err == nil {
						if err := tiertest.Check(f, slot.Extent().Bytes(), tiertest.Key(round), 0); err != nil {
							t.Error(err)
						}
						slot.Release()
						return
					}
					fill, err := c.Reserve(t.Context(), tiertest.Key(round))
					if errors.Is(err, errdefs.ErrExists) {
						continue // another caller was first: wait for it
					}
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					fills++
					mu.Unlock()
					finish(t, f, fill, round).Release()
				}
			})
		}
		wg.Wait()
		if fills != 1 {
			t.Fatalf("%d fillings of one block", fills)
		}
	}
}
