package cache_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/cache"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// A window keeps a block while it is filled, open or retained, and forgets it after that.
func TestWindowForgets(t *testing.T) {
	f := tiertest.NewFormat(t)
	kept := open(t, f, 2)
	memory := kept.Slots().Region
	closeTier(t, kept)
	c, err := cache.Open(cache.Config{Memory: memory, Formats: block.Formats{f}, Transient: true})
	if err != nil {
		t.Fatal(err)
	}
	defer closeTier(t, c)
	if c.Name() != "window" || !c.Transient() {
		t.Errorf("the tier is a %q, transient %v", c.Name(), c.Transient())
	}
	ctx := t.Context()
	slot := store(t, c, f, 1)
	if n, err := c.Retain(ctx, tiertest.Keys(1)); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	slot.Release()
	if err := c.List(ctx, func(key block.Key) error { return fmt.Errorf("block %s", key) }); err != nil {
		t.Errorf("a list of a window: %v", err)
	}
	again, err := c.Open(ctx, tiertest.Key(1))
	if err != nil {
		t.Fatal(err)
	}
	// It occupies the slot for which another fill waits, until it is released.
	store(t, c, f, 2).Release()
	other := store(t, c, f, 3)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := c.Reserve(ended, tiertest.Key(4)); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("reserve with both slots pinned: %v", err)
	}
	c.Release(tiertest.Keys(1))
	again.Release()
	fill, err := c.Reserve(ended, tiertest.Key(4))
	if err != nil {
		t.Fatal(err)
	}
	fill.Abort(nil)
	other.Corrupt(errors.New("checksum differs"))
	other.Release()
	states := make([]tier.State, 3)
	if err := c.Lookup(ctx, tiertest.Keys(1, 2, 3), states); err != nil {
		t.Fatal(err)
	}
	if states[0] != tier.Absent || states[1] != tier.Absent || states[2] != tier.Failed {
		t.Errorf("states %v", states)
	}
	if st := c.Stats(); st.Blocks != 0 || st.Bytes != 0 || st.Retained != 0 || st.Evictions != 0 {
		t.Errorf("%+v", st)
	}
}

// A tier without memory records which blocks are in slots elsewhere, and reports evicted blocks.
// The tier's blocks have no bytes.
func TestBlocksElsewhere(t *testing.T) {
	f := tiertest.NewFormat(t)
	var evicted []block.Key
	c, err := cache.Open(cache.Config{Blocks: 2, Formats: block.Formats{f}, Evicted: func(key block.Key) { evicted = append(evicted, key) }})
	if err != nil {
		t.Fatal(err)
	}
	defer closeTier(t, c)
	ctx := t.Context()
	for n := range 3 {
		fill, err := c.Reserve(ctx, tiertest.Key(n))
		if err != nil {
			t.Fatal(err)
		}
		slot, err := fill.Publish()
		if err != nil || slot.Sums() != nil {
			t.Fatal(slot, err)
		}
		slot.Release()
	}
	if len(evicted) != 1 || evicted[0] == tiertest.Key(2) || c.Stats().Evictions != 1 {
		t.Errorf("evicted %v", evicted)
	}
	image := mem.Extent{}
	if err := c.Get(ctx, tiertest.Key(2), image); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Error(err)
	}
	if err := c.Put(ctx, tiertest.Key(2), image); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Error(err)
	}
	for _, wrong := range []cache.Config{{Formats: block.Formats{f}}, {Formats: block.Formats{f}, Blocks: -1}} {
		if _, err := cache.Open(wrong); !errors.Is(err, errdefs.ErrInvalid) {
			t.Error(err)
		}
	}
}
