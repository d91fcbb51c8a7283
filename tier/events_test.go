package tier_test

import (
	"context"
	"testing"

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
