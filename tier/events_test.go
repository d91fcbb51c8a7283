package tier_test

import (
	"context"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier"
)

// More events than MaxEvents are dropped and counted, and an event Lost precedes the newer ones.
func TestEventsThatWaitAreBounded(t *testing.T) {
	var none *tier.Events
	none.Stored("cache", block.Key{}) // a tier without events
	var e tier.Events
	e.Stored("cache", block.Key{1}) // no watcher
	w := e.Watch()
	defer w.Close()
	if got := w.Take(9); len(got) != 1 || got[0].Change != tier.EventLost {
		t.Errorf("the first events are %v", got)
	}
	for i := range tier.MaxEvents + 2 {
		e.Stored("file", block.Key{byte(i), byte(i >> 8), byte(i >> 16)})
	}
	if n := e.LostEvents(); n != tier.MaxEvents {
		t.Errorf("%d events are lost", n)
	}
	got := w.Take(2)
	if rest := w.Take(9); len(rest) != 1 || rest[0].Key != (block.Key{1, 0, 1}) {
		t.Errorf("the last events are %v", rest)
	}
	if len(got) != 2 || got[0].Change != tier.EventLost || got[1].Key != (block.Key{0, 0, 1}) {
		t.Errorf("after the loss: %v", got)
	}
	if err := w.Wait(t.Context()); err != nil { // the events above
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Wait(ctx); err == nil {
		t.Error("Wait without an event did not wait")
	}
	w.Close()
	e.Removed("file", block.Key{})
	if got := w.Take(9); len(got) > 0 {
		t.Errorf("a closed watcher has %v", got)
	}
}

// A watcher that takes few events at a time does not move all the others each time, with the locks
// of the tiers held.
func TestTakeFewOfManyEvents(t *testing.T) {
	var e tier.Events
	w := e.Watch()
	defer w.Close()
	for i := range tier.MaxEvents - 1 {
		e.Stored("cache", block.Key{1, byte(i), byte(i >> 8)})
	}
	start, n := time.Now(), 0
	for some := w.Take(1); len(some) == 1; some = w.Take(1) {
		if i := n - 1; i >= 0 && some[0].Key != (block.Key{1, byte(i), byte(i >> 8)}) {
			t.Fatalf("event %d is %v", n, some[0])
		}
		if n++; n%2 == 0 {
			e.Removed("cache", block.Key{1}) // the last ones
		}
		if n == tier.MaxEvents {
			break
		}
	}
	if took := time.Since(start); n != tier.MaxEvents || took > 3*time.Second || e.LostEvents() > 0 {
		t.Errorf("%d of %d events in %v, %d lost", n, tier.MaxEvents, took, e.LostEvents())
	}
}
