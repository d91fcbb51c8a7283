package tiertest

import (
	"context"
	"errors"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

// wantPins checks the tier's count of pins.
func (s *suite) wantPins(tr tier.Tier, what string, n int64) {
	s.Helper()
	if st, ok := s.stats(tr); ok && st.Retained != n {
		s.Errorf("%s: %d pins are counted, want %d", what, st.Retained, n)
	}
}

// wantRetain retains keys and checks that the first n are pinned.
func (s *suite) wantRetain(tr tier.Tier, keys []block.Key, n int) {
	s.Helper()
	if got, err := tr.Retain(s.Context(), keys); got != n || err != nil {
		s.Fatalf("retain of %d blocks: %d, %v; want %d", len(keys), got, err, n)
	}
}

// testRetainRun checks that Retain stops before the first missing block, and does not pin later
// blocks.
func testRetainRun(s *suite) {
	tr := s.open(8)
	for _, i := range []int{0, 1, 2, 4, 5} {
		s.put(tr, Key(i))
	}
	s.wantRetain(tr, nil, 0)
	s.wantRetain(tr, Keys(3, 0), 0)
	s.wantPins(tr, "a run that begins with a block that is not there", 0)
	s.wantRetain(tr, Keys(0, 1, 2, 3, 4, 5), 3)
	s.wantPins(tr, "a run with a gap", 3)
	busy, none := errdefs.ErrBusy, errdefs.ErrNotFound
	for i, want := range []error{busy, busy, busy, none, nil, nil} {
		if err := tr.Delete(s.Context(), Key(i)); !errors.Is(err, want) {
			s.Errorf("delete of block %d: %v, want %v", i, err, want)
		}
	}
	// A key that occurs several times is pinned several times. Pins are released in any order.
	s.wantRetain(tr, Keys(1, 2, 1, 1), 4)
	s.wantPins(tr, "one key three times", 7)
	tr.Release(Keys(2, 1, 0))
	tr.Release(Keys(1, 1))
	s.wantIs("delete with a pin left", tr.Delete(s.Context(), Key(1)), errdefs.ErrBusy)
	tr.Release(Keys(2))
	tr.Release(nil)
	tr.Release(Keys(1))
	s.wantPins(tr, "all given back", 0)
	for i := range 3 {
		if err := tr.Delete(s.Context(), Key(i)); err != nil {
			s.Errorf("delete of block %d after its last release: %v", i, err)
		}
	}
}

// testRetainRunCanceled checks that a canceled Retain pins only the returned number of blocks.
func testRetainRunCanceled(s *suite) {
	tr := s.open(4)
	for i := range 3 {
		s.put(tr, Key(i))
	}
	ended, cause := s.canceled()
	n, err := tr.Retain(ended, Keys(0, 1, 2))
	s.wantIs("retain", err, cause)
	s.wantPins(tr, "retain with a context that has ended", int64(n))
	tr.Release(Keys(0, 1, 2)[:n])
	if n != 0 {
		s.Errorf("retain with a context that has ended pinned %d blocks", n)
	}
	ctx := &endsSoon{Context: s.Context(), asked: 2}
	n, err = tr.Retain(ctx, Keys(0, 1, 2))
	if err == nil && n != 3 {
		s.Errorf("retain pinned %d of 3 blocks and has no error", n)
	}
	s.wantPins(tr, "retain whose context ended on the way", int64(n))
	tr.Release(Keys(0, 1, 2)[:n])
	s.wantPins(tr, "at the end", 0)
}

// endsSoon is a context that ends after some calls of Err.
type endsSoon struct {
	context.Context
	asked int
}

func (c *endsSoon) Err() error {
	if c.asked--; c.asked < 0 {
		return context.Canceled
	}
	return nil
}

// testOpenReady checks that OpenReady, with blocks in all states, pins only those that are Ready.
func testOpenReady(s *slotSuite) {
	s.store(Key(0)).Release()
	s.store(Key(1)).Release()
	filling := s.reserve(Key(2))
	s.reserve(Key(3)).Abort(errors.New("no luck"))
	keys := Keys(0, 2, 3, 1, 4, 0)
	slots, states := make([]tier.Slot, len(keys)), make([]tier.State, len(keys))
	slots[1] = s.store(Key(9)) // old contents must be cleared
	slots[1].Release()
	if err := s.st.OpenReady(s.Context(), keys, slots, states); err != nil {
		s.Fatal(err)
	}
	for i, want := range []tier.State{tier.Ready, tier.Filling, tier.Failed, tier.Ready, tier.Absent, tier.Ready} {
		if states[i] != want || (slots[i] != nil) != (want == tier.Ready) {
			s.Errorf("answer %d is %s, slot %v; want %s", i, states[i], slots[i], want)
		}
	}
	s.wantPins(s.st, "two blocks, one of them twice", 3)
	if st, ok := s.stats(s.st); ok && st.Hits != 3 {
		s.Errorf("%d hits are counted, want 3", st.Hits)
	}
	s.check(slots[0], Key(0))
	s.check(slots[3], Key(1))
	slots[0].Release()
	slots[0].Release()
	s.wantIs("delete with a pin left", s.st.Delete(s.Context(), Key(0)), errdefs.ErrBusy)
	// The second one is released twice.
	s.st.ReleaseSlots([]tier.Slot{slots[5], slots[0], slots[3], s.mustOpen(Key(1))})
	s.st.ReleaseSlots(nil)
	slots[5].Release()
	filling.Abort(nil)
	s.wantPins(s.st, "all given back", 0)

	ended, cause := s.canceled()
	s.wantIs("open with a context that has ended", s.st.OpenReady(ended, keys, slots, states), cause)
	s.wantIs("open into too few slots", s.st.OpenReady(s.Context(), keys, slots[1:], states), errdefs.ErrInvalid)
	s.wantIs("open into too few states", s.st.OpenReady(s.Context(), keys, slots, states[1:]), errdefs.ErrInvalid)
	s.wantPins(s.st, "after refusals", 0)
}

// testRetainSlots checks that a block that is being filled or has failed ends Retain like a missing
// one.
func testRetainSlots(s *slotSuite) {
	s.store(Key(0)).Release()
	s.store(Key(2)).Release()
	f := s.reserve(Key(1))
	s.wantRetain(s.st, Keys(0, 1, 2), 1)
	f.Abort(errors.New("no luck"))
	s.wantRetain(s.st, Keys(0, 1, 2), 1)
	slot := s.store(Key(1))
	s.wantRetain(s.st, Keys(0, 1, 2), 3)
	slot.Corrupt(errors.New("checksum differs"))
	slot.Release()
	s.wantRetain(s.st, Keys(0, 1, 2), 1)
	s.st.Release(Keys(0, 0, 0, 0, 2, 1)) // including the retain of the corrupt block
	s.wantPins(s.st, "all given back", 0)
}

// testLimitRetained checks that LimitRetained counts each retained slot once, until it is released.
func testLimitRetained(s *slotSuite) {
	for i := range 4 {
		s.store(Key(i)).Release()
	}
	s.st.LimitRetained(2)
	retain := func(keys []block.Key, want int) {
		s.Helper()
		n, err := s.st.Retain(s.Context(), keys)
		if n != want {
			s.Errorf("%d of %d blocks are retained, want %d", n, len(keys), want)
		}
		if want < len(keys) {
			s.wantIs("retain beyond the limit", err, errdefs.ErrBusy)
		}
	}
	retain(Keys(0, 1, 2), 2)
	retain(Keys(1, 0, 1, 3), 3) // slots that are retained already do not count again
	s.st.Release(Keys(0, 1, 1))
	retain(Keys(2), 0)
	slot := s.mustOpen(Key(1))
	slot.Corrupt(errors.New("checksum differs")) // its slot is freed with the last retain
	slot.Release()
	retain(Keys(2, 3), 1)
	s.st.Release(Keys(0, 1, 2))
	retain(Keys(2, 3), 2)
	s.st.Release(Keys(2, 3))
	s.wantPins(s.st, "all given back", 0)
}
