package tiertest

import (
	"context"
	"errors"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

// openPinner opens a tier that can pin blocks. It skips the test if the tier cannot.
func (s *suite) openPinner(capacity int) (tier.Tier, tier.Pinner) {
	s.Helper()
	tr := s.open(capacity)
	p, ok := tr.(tier.Pinner)
	if !ok {
		s.Skip("the tier cannot pin blocks")
	}
	return tr, p
}

// wantPinned checks the tier's count of pinned blocks.
func (s *suite) wantPinned(tr tier.Tier, what string, n int64) {
	s.Helper()
	if st, ok := s.stats(tr); ok && (st.Pinned != n || st.PinnedBytes != n*s.imageBytes()) {
		s.Errorf("%s: %d blocks of %d bytes are pinned, want %d", what, st.Pinned, st.PinnedBytes, n)
	}
}

func (s *suite) mustPin(p tier.Pinner, keys ...block.Key) {
	s.Helper()
	if err := p.Pin(s.Context(), keys); err != nil {
		s.Fatal(err)
	}
}

func (s *suite) mustUnpin(p tier.Pinner, keys ...block.Key) {
	s.Helper()
	if err := p.Unpin(s.Context(), keys); err != nil {
		s.Fatal(err)
	}
}

// testPin checks that a pinned block cannot be deleted until it is unpinned, however often it was
// pinned, and that a missing block cannot be pinned.
func testPin(s *suite) {
	tr, p := s.openPinner(32)
	for i := range 4 {
		s.put(tr, Key(i))
	}
	s.wantIs("pin of a missing block", p.Pin(s.Context(), Keys(0, 9)), errdefs.ErrNotFound)
	s.wantPinned(tr, "after a refused pin", 0)
	s.mustPin(p, Keys(0, 1, 0)...)
	s.mustPin(p, Keys(1, 2)...)
	s.wantPinned(tr, "pinned", 3)
	s.wantPins(tr, "no block is retained", 0)
	for i := range 3 {
		s.wantIs("delete of a pinned block", tr.Delete(s.Context(), Key(i)), errdefs.ErrBusy)
	}
	s.put(tr, Key(0)) // the same block
	s.mustUnpin(p, Keys(0, 1, 3, 9)...)
	s.wantPinned(tr, "one left", 1)
	for i, want := range []error{nil, nil, errdefs.ErrBusy, nil} {
		if err := tr.Delete(s.Context(), Key(i)); !errors.Is(err, want) {
			s.Errorf("delete of block %d: %v, want %v", i, err, want)
		}
	}
	s.mustGet(tr, Key(2))
	ended, cause := s.canceled()
	s.wantIs("pin with a context that has ended", p.Pin(ended, Keys(2)), cause)
}

// testPinReopened checks that pins survive reopening, and that removed pins do not come back.
func testPinReopened(s *suite) {
	tr, p := s.openPinner(32)
	for i := range 3 {
		s.put(tr, Key(i))
	}
	s.mustPin(p, Keys(0, 1)...)
	s.mustUnpin(p, Keys(1)...)
	tr = s.c.Reopen(s.T, tr)
	s.wantPinned(tr, "opened again", 1)
	s.wantIs("delete of a pinned block", tr.Delete(s.Context(), Key(0)), errdefs.ErrBusy)
	if err := tr.Delete(s.Context(), Key(1)); err != nil {
		s.Error(err)
	}
	s.mustGet(tr, Key(0))
	p, ok := tr.(tier.Pinner)
	if !ok {
		s.Fatal("the tier that was opened again cannot pin blocks")
	}
	s.mustUnpin(p, Keys(0)...)
	tr = s.c.Reopen(s.T, tr)
	s.Cleanup(func() {
		if err := tr.Close(context.WithoutCancel(s.Context())); err != nil {
			s.Error(err)
		}
	})
	s.wantPinned(tr, "unpinned and opened again", 0)
	if err := tr.Delete(s.Context(), Key(0)); err != nil {
		s.Error(err)
	}
}

// testPinCorrupt checks that the pin of a damaged block goes with the block.
func testPinCorrupt(s *suite) {
	tr, p := s.openPinner(32)
	s.put(tr, Key(0))
	s.put(tr, Key(1))
	s.mustPin(p, Keys(0, 1)...)
	s.c.Corrupt(s.T, tr, Key(0))
	if err := tr.Get(s.Context(), Key(0), Buffer(s.T, s.imageBytes())); !errors.Is(err, errdefs.ErrCorrupt) {
		s.Fatalf("get of a corrupt block: %v", err)
	}
	s.wantMiss(tr, Key(0))
	s.wantPinned(tr, "after damage", 1)
	s.put(tr, Key(0))
	s.mustGet(tr, Key(0))
	if err := tr.Delete(s.Context(), Key(0)); err != nil {
		s.Errorf("delete of a block that was stored again: %v", err)
	}
	s.mustGet(tr, Key(1))
}

// testPinnedStays runs PinnedStays.
func testPinnedStays(s *suite) {
	tr, _ := s.openPinner(16)
	PinnedStays(s.T, tr, s.c.Format)
}

// PinnedStays checks that a bounded tier, which is empty, does not evict pinned blocks, that half of
// its bound can be pinned, and that blocks are evicted again after Unpin.
func PinnedStays(t *testing.T, tr tier.Tier, f block.Format) {
	t.Helper()
	s := newSuite(t, Config{Format: f})
	p, ok := tr.(tier.Pinner)
	if !ok {
		t.Fatal("the tier cannot pin blocks")
	}
	st, _ := s.stats(tr)
	half := st.CapacityBytes / 2 / s.imageBytes()
	var pinned []block.Key
	for i := 0; ; i++ {
		s.put(tr, Key(i))
		err := p.Pin(t.Context(), Keys(i))
		if int64(i) == half {
			s.wantIs("pin above the limit", err, errdefs.ErrNoSpace)
			break
		}
		if err != nil {
			t.Fatalf("pin of block %d of %d: %v", i, half, err)
		}
		pinned = append(pinned, Key(i))
	}
	s.wantPinned(tr, "at the limit", half)
	next := int(half) + 1
	flood := func() {
		t.Helper()
		for range 4 * int(2*half) {
			s.put(tr, Key(next))
			next++
		}
	}
	flood()
	for _, key := range pinned {
		s.mustGet(tr, key)
	}
	if st, _ := s.stats(tr); st.Evictions == 0 || st.Bytes > st.CapacityBytes || st.Errors > 0 {
		t.Errorf("%d evictions, %d errors, and %d of %d bytes are stored", st.Evictions, st.Errors, st.Bytes, st.CapacityBytes)
	}
	s.wantPinned(tr, "after evictions", half)
	s.mustUnpin(p, pinned...)
	flood()
	for _, key := range pinned {
		if s.state(tr, key) != tier.Ready {
			return
		}
	}
	t.Errorf("all %d blocks that were unpinned are still stored", len(pinned))
}
