package tiertest

import (
	"context"
	"errors"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

type reserved struct {
	fill tier.Fill
	err  error
}

// reserveLater calls Reserve in another goroutine and returns when Reserve is waiting.
func (s *slotSuite) reserveLater(ctx context.Context, key block.Key) <-chan reserved {
	s.Helper()
	c := make(chan reserved, 1)
	go func() {
		f, err := s.st.Reserve(ctx, key)
		c <- reserved{f, err}
	}()
	synctest.Wait()
	if !s.waits(c) {
		s.Fatal("reserve did not wait")
	}
	return c
}

func (s *slotSuite) waits(c <-chan reserved) bool {
	synctest.Wait()
	return len(c) == 0
}

// pinAll stores a block in every slot and returns them pinned.
func (s *slotSuite) pinAll() []tier.Slot {
	s.Helper()
	var slots []tier.Slot
	for i := range slotCapacity {
		slots = append(slots, s.store(Key(i)))
	}
	return slots
}

// testReserveWaitsInLine checks that calls of Reserve wait in a queue, without spinning, while all
// slots are pinned.
func testReserveWaitsInLine(s *slotSuite) {
	slots := s.pinAll()
	waits := make([]<-chan reserved, 3)
	for i := range waits {
		waits[i] = s.reserveLater(s.Context(), Key(10+i))
	}
	for i, slot := range slots[:3] {
		slot.Release()
		for j := i + 1; j < len(waits); j++ {
			if !s.waits(waits[j]) {
				s.Fatalf("waiter %d was served before its turn", j)
			}
		}
		r := <-waits[i]
		if r.err != nil {
			s.Fatal(r.err)
		}
		if r.fill.Index() != slot.Index() {
			s.Errorf("waiter %d got slot %d, released was %d", i, r.fill.Index(), slot.Index())
		}
		s.fill(r.fill, Key(10+i))
		defer s.publish(r.fill).Release()
	}
	slots[3].Release()
	s.mustGet(s.st, Key(3))
}

func testReserveGivesUp(s *slotSuite) {
	slots := s.pinAll()
	cause := errors.New("too long")
	ctx, cancel := context.WithTimeoutCause(s.Context(), time.Hour, cause)
	defer cancel()
	first, second := s.reserveLater(ctx, Key(10)), s.reserveLater(s.Context(), Key(11))
	r := <-first
	s.wantIs("reserve", r.err, errdefs.ErrBusy, cause)
	if got := s.state(s.st, Key(10)); got != tier.Absent {
		s.Errorf("a block that got no slot is %s", got)
	}
	slots[2].Release() // the canceled call does not delay the next
	r = <-second
	if r.err != nil {
		s.Fatal(r.err)
	}
	r.fill.Abort(nil)
	for _, slot := range slots {
		slot.Release()
	}
}

// testTriesOnce checks that Open and Reserve with an ended context return available slots and do
// not wait.
func testTriesOnce(s *slotSuite) {
	ctx, cause := s.canceled()
	f, err := s.st.Reserve(ctx, Key(20))
	if err != nil {
		s.Fatal(err)
	}
	_, err = s.st.Open(ctx, Key(20))
	s.wantIs("open of a block being filled", err, cause)
	s.fill(f, Key(20))
	s.publish(f).Release()
	slot, err := s.st.Open(ctx, Key(20))
	if err != nil {
		s.Fatal(err)
	}
	slot.Release()
	slots := s.pinAll()
	_, err = s.st.Reserve(ctx, Key(21))
	s.wantIs("reserve with every slot pinned", err, errdefs.ErrBusy, cause)
	w := s.reserveLater(s.Context(), Key(21))
	slots[0].Release()
	(<-w).fill.Abort(nil)
	for _, slot := range slots {
		slot.Release()
	}
	if st, ok := s.stats(s.st); ok && st.Retained != 0 {
		s.Errorf("%d pins are counted at the end", st.Retained)
	}
}

// testWaitersOfOneBlock checks that, if several calls wait for a slot for one block, one of them
// fills it and the others fail.
func testWaitersOfOneBlock(s *slotSuite) {
	slots := s.pinAll()
	first, second, third := s.reserveLater(s.Context(), Key(10)), s.reserveLater(s.Context(), Key(10)), s.reserveLater(s.Context(), Key(11))
	slots[0].Release()
	r := <-first
	if r.err != nil {
		s.Fatal(r.err)
	}
	synctest.Wait()
	select {
	case o := <-second:
		s.wantIs("reserve", o.err, errdefs.ErrExists)
	default:
		// The call may also fail later, at the latest when the next slot is released.
	}
	slots[1].Release()
	o := <-third
	if o.err != nil {
		s.Fatal(o.err)
	}
	r.fill.Abort(nil)
	o.fill.Abort(nil)
	for _, slot := range slots {
		slot.Release()
	}
}

func testCloseWakes(s *slotSuite) {
	slots := s.pinAll()
	slots[0].Release()
	f := s.reserve(Key(20))
	open := s.openLater(s.Context(), Key(20))
	reserve := s.reserveLater(s.Context(), Key(21))
	if err := s.st.Close(s.Context()); err == nil {
		s.Error("close with slots in use reports nothing")
	}
	s.wantIs("open", (<-open).err, errdefs.ErrClosed)
	s.wantIs("reserve", (<-reserve).err, errdefs.ErrClosed)
	// Owners may still release their slots. Then the last Close succeeds.
	s.fill(f, Key(20))
	if _, err := f.Publish(); !errors.Is(err, errdefs.ErrClosed) {
		s.Errorf("publish on a closed tier: %v, want ErrClosed", err)
	}
	for _, slot := range slots {
		slot.Release()
	}
}
