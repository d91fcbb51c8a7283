package kvlane_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/tier"
)

// TestDefectConcurrentEngineClose closes the engine from many goroutines. Its resources are
// released once, and all calls return without an error when that is done.
func TestDefectConcurrentEngineClose(t *testing.T) {
	for range 20 {
		before := leak.Live()
		e, err := kvlane.Open(t.Context(), testConfig(t))
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				if err := e.Close(t.Context()); err != nil {
					t.Error(err)
				}
				if _, err := e.Device().AllocHost(4096); err == nil {
					t.Error("Close returned before the device was closed")
				}
			})
		}
		all.Wait()
		for kind, n := range leak.Live() {
			if n != before[kind] {
				t.Fatalf("%d %s are left; a negative number was given back twice", n-before[kind], kind)
			}
		}
	}
}

// TestDefectEngineCloseFreesMemoryThatIsInUse closes an engine while a slot of the cache is pinned.
// Close must fail and keep the memory until the slot is released and Close is called again.
func TestDefectEngineCloseFreesMemoryThatIsInUse(t *testing.T) {
	c := testConfig(t)
	e, err := kvlane.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	cache := e.Tiers()[0].(tier.SlotTier) //nolint:errcheck // the first tier always is one
	fill, err := cache.Reserve(t.Context(), e.Identity().Key([]byte{1}))
	if err != nil {
		t.Fatal(err)
	}
	pinned := leak.Live()["pinned bytes"]
	if err := e.Close(t.Context()); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("close with a slot being filled: %v", err)
	}
	if now := leak.Live()["pinned bytes"]; now != pinned {
		t.Fatalf("%d of %d pinned bytes are left while a slot of them is being filled", now, pinned)
	}
	clear(fill.Extent().Bytes()) // the memory still exists
	fill.Abort(errdefs.ErrCanceled)
	if err := e.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestDefectSecondEngineCloseHonoursItsContext checks that a second Close returns when its context
// ends, although the first waits for a tier.
func TestDefectSecondEngineCloseHonoursItsContext(t *testing.T) {
	e, err := kvlane.Open(t.Context(), testConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	asked, let := make(chan struct{}), make(chan struct{})
	kvlane.HoldClose(e, func(context.Context) error {
		close(asked)
		<-let
		return nil
	})
	first := make(chan error, 1)
	go func() { first <- e.Close(t.Context()) }()
	<-asked
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := e.Close(ctx); !errors.Is(err, errdefs.ErrCanceled) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close beside another: %v", err)
	}
	close(let)
	if err := errors.Join(<-first, e.Close(t.Context())); err != nil {
		t.Error(err)
	}
}
