package tier_test

import (
	"slices"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier"
)

func wantAnchor(t *testing.T, a *tier.Anchors, i, want int) {
	t.Helper()
	got, ok := a.Of(key(i))
	if ok != (want >= 0) || ok && got != key(want) {
		t.Errorf("block %d has anchor %s, %v; want block %d", i, got, ok, want)
	}
}

func TestAnchorsOfRuns(t *testing.T) {
	a := tier.NewAnchors(1 << 10)
	wantAnchor(t, a, 0, -1)
	a.Follow(key(99), keys(100, 110)) // the previous block is not recorded
	wantAnchor(t, a, 100, -1)
	a.Prompt(keys(0, 100))
	for i := range 100 {
		wantAnchor(t, a, i, i/tier.RunBlocks*tier.RunBlocks)
		if _, part, ok := a.Part(key(i)); !ok || part != key(i/tier.PartBlocks*tier.PartBlocks) {
			t.Errorf("block %d is in part %s, %t", i, part, ok)
		}
	}
	// A dump of the rest, and one that begins within recorded blocks.
	a.Follow(key(99), keys(100, 120))
	a.Follow(block.Key{}, keys(110, 130))
	for i := 100; i < 130; i++ {
		wantAnchor(t, a, i, i/tier.RunBlocks*tier.RunBlocks)
	}
	// A prompt whose start is not recorded begins a run. The whole prompt corrects it.
	a.Follow(block.Key{}, keys(210, 212))
	wantAnchor(t, a, 211, 210)
	a.Prompt(keys(200, 220))
	wantAnchor(t, a, 211, 200)

	// A list that starts within a recorded prompt keeps the anchors.
	a.Prompt(keys(70, 90))
	wantAnchor(t, a, 89, 64)

	// Anchors that the caller sets. Blocks that follow have none, until a run starts.
	a.Set(keys(370, 380), slices.Repeat(keys(364, 365), 10))
	a.Prompt(keys(370, 390))
	a.Follow(key(379), keys(380, 390))
	wantAnchor(t, a, 370, 364)
	wantAnchor(t, a, 379, 364)
	wantAnchor(t, a, 380, -1)
	if _, part, ok := a.Part(key(370)); ok {
		t.Errorf("a block with a given anchor is in part %s", part)
	}
	a.Set(keys(0, 20), slices.Repeat(keys(0, 1), 20)) // as recorded
	a.Follow(key(19), keys(420, 421))
	wantAnchor(t, a, 420, 0)

	var none *tier.Anchors
	none.Set(keys(0, 1), keys(0, 1))
	none.Prompt(keys(0, 1))
	none.Follow(block.Key{}, keys(0, 1))
	wantAnchor(t, none, 0, -1)
}

func TestAnchorsAreBounded(t *testing.T) {
	const most = 100
	a := tier.NewAnchors(most)
	a.Prompt(keys(0, 1000))
	known := 0
	for i := range 1000 {
		if _, ok := a.Of(key(i)); ok {
			known++
		}
	}
	if known < most/2 || known > most {
		t.Errorf("%d blocks are recorded, want %d to %d", known, most/2, most)
	}
	wantAnchor(t, a, 999, 999/tier.RunBlocks*tier.RunBlocks)
}
