package tiertest

import (
	"context"
	"errors"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

// testFailedBlock checks that a block whose fill failed is not a hit.
func testFailedBlock(s *slotSuite) {
	cause := errors.New("the load failed")
	f := s.reserve(Key(1))
	s.fill(f, Key(1)) // complete image, but the fill fails
	f.Abort(cause)
	if got := s.state(s.st, Key(1)); got != tier.Failed {
		s.Errorf("a block whose filling failed is %s", got)
	}
	s.wantMiss(s.st, Key(1))
	_, err := s.st.Open(s.Context(), Key(1))
	s.wantIs("open of a failed block", err, errdefs.ErrNotFound, cause)
	for i := range slotCapacity { // its slot is free
		s.store(Key(10 + i)).Release()
	}
	f = s.reserve(Key(1)) // the block may be filled again
	if got := s.state(s.st, Key(1)); got != tier.Filling {
		s.Errorf("a failed block that is reserved again is %s", got)
	}
	s.fill(f, Key(1))
	s.publish(f).Release()
	s.mustGet(s.st, Key(1))
}

func testSlotCorrupt(s *slotSuite) {
	cause := errors.New("checksum differs")
	s.store(Key(1)).Release()
	s.mustRetain(s.st, Key(1))
	one, two := s.mustOpen(Key(1)), s.mustOpen(Key(1))
	one.Corrupt(cause)
	two.Corrupt(cause)
	s.wantMiss(s.st, Key(1))
	_, err := s.st.Open(s.Context(), Key(1))
	s.wantIs("open of a corrupt block", err, errdefs.ErrNotFound, cause)
	if st, ok := s.stats(s.st); ok && (st.Corrupt != 1 || st.Blocks != 0) {
		s.Errorf("%d corrupt and %d blocks are counted, want 1 and 0", st.Corrupt, st.Blocks)
	}
	// An intact copy uses a different slot while the corrupt one is open.
	good := s.store(Key(1))
	if good.Index() == one.Index() {
		s.Error("the slot of a corrupt block was reused while open")
	}
	one.Release()
	two.Release()
	s.check(good, Key(1))
	s.st.Release(Keys(1)) // releases the retain of the corrupt block
	good.Release()
	s.mustGet(s.st, Key(1))
	for i := range slotCapacity { // all slots are usable
		s.store(Key(10 + i)).Release()
	}
	if err := s.st.Delete(s.Context(), Key(1)); err != nil && !errors.Is(err, errdefs.ErrNotFound) {
		s.Error(err)
	}
}

// testQuarantine checks that a slot to which hardware may still write is not reused.
func testQuarantine(s *slotSuite) {
	cause := errors.New("the copy was abandoned")
	f := s.reserve(Key(1))
	w := s.openLater(s.Context(), Key(1))
	quiesced := make(chan struct{})
	f.Quarantine(cause, quiesced)
	o := <-w
	s.wantIs("open", o.err, errdefs.ErrNotFound, cause)
	s.wantMiss(s.st, Key(1))
	if st, ok := s.stats(s.st); ok && st.Quarantined != 1 {
		s.Errorf("%d slots are counted in quarantine, want 1", st.Quarantined)
	}
	var leased []tier.Slot
	for i := range slotCapacity - 1 {
		slot := s.store(Key(10 + i))
		if slot.Index() == f.Index() {
			s.Error("a slot in quarantine was given away")
		}
		leased = append(leased, slot)
	}
	ctx, cancel := context.WithTimeout(s.Context(), time.Hour)
	defer cancel()
	_, err := s.st.Reserve(ctx, Key(2))
	s.wantIs("reserve with the last slot in quarantine", err, errdefs.ErrBusy)
	reserved := make(chan tier.Fill, 1)
	go func() { reserved <- s.reserve(Key(1)) }()
	synctest.Wait()
	f.Extent().Bytes()[0] = 0xff // the late write
	close(quiesced)
	second := <-reserved
	if second.Index() != f.Index() {
		s.Errorf("slot %d was reserved, want the one out of quarantine", second.Index())
	}
	s.fill(second, Key(1))
	s.publish(second).Release()
	s.mustGet(s.st, Key(1))
	for _, slot := range leased {
		slot.Release()
	}
}
