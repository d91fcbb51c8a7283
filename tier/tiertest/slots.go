package tiertest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

// runSlots runs the tests for a tier.SlotTier, in bubbles. In a bubble time passes only while all
// goroutines are blocked, so that a spinning wait never ends and a lost wake-up is a deadlock.
func runSlots(t *testing.T, c Config) {
	t.Helper()
	tests := []struct {
		name string
		run  func(s *slotSuite)
	}{
		{"Fill", testFill},
		{"FillEndsOnce", testFillEndsOnce},
		{"SlotsAreApart", testSlotsAreDistinct},
		{"ReserveExisting", testReserveExisting},
		{"OpenWaitsForPublish", testOpenWaitsForPublish},
		{"OpenWaitsForAbort", testOpenWaitsForAbort},
		{"OpenGivesUp", testOpenGivesUp},
		{"PutWaitsForFill", testPutWaitsForFill},
		{"FailedBlock", testFailedBlock},
		{"ReserveWaitsInLine", testReserveWaitsInLine},
		{"ReserveGivesUp", testReserveGivesUp},
		{"EndedContextTriesOnce", testTriesOnce},
		{"WaitersOfOneBlock", testWaitersOfOneBlock},
		{"OpenBlocksEvictionAndDelete", testOpenBlocks},
		{"ReleaseTwice", testReleaseTwice},
		{"OpenReadyMixed", testOpenReady},
		{"RetainRunOfSlots", testRetainSlots},
		{"LimitRetained", testLimitRetained},
		{"SlotCorrupt", testSlotCorrupt},
		{"Quarantine", testQuarantine},
		{"CloseWakesWaiters", testCloseWakes},
	}
	// Open one tier to find out whether it has slots.
	isSlotTier := false
	t.Run("SlotTier", func(t *testing.T) {
		tr := c.Open(t, 1)
		_, isSlotTier = tr.(tier.SlotTier)
		if err := tr.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		if !isSlotTier {
			return
		}
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { tt.run(newSlotSuite(t, c)) })
			})
		}
	})
}

const slotCapacity = 4

// slotSuite is a suite with a tier of slotCapacity slots.
type slotSuite struct {
	*suite
	st tier.SlotTier
}

func newSlotSuite(t *testing.T, c Config) *slotSuite {
	t.Helper()
	s := newSuite(t, c)
	st, ok := s.open(slotCapacity).(tier.SlotTier)
	if !ok {
		t.Fatal("the tier has slots, and then has not")
	}
	return &slotSuite{s, st}
}

func (s *slotSuite) reserve(key block.Key) tier.Fill {
	s.Helper()
	f, err := s.st.Reserve(s.Context(), key)
	if err != nil {
		s.Fatal(err)
	}
	return f
}

// fill writes the block's image into the slot.
func (s *slotSuite) fill(f tier.Fill, key block.Key) {
	s.Helper()
	Seal(s.T, s.c.Format, f.Extent().Bytes(), key, 0)
}

func (s *slotSuite) publish(f tier.Fill) tier.Slot {
	s.Helper()
	slot, err := f.Publish()
	if err != nil {
		s.Fatal(err)
	}
	return slot
}

// store stores the block and returns it pinned.
func (s *slotSuite) store(key block.Key) tier.Slot {
	s.Helper()
	f := s.reserve(key)
	s.fill(f, key)
	return s.publish(f)
}

func (s *slotSuite) mustOpen(key block.Key) tier.Slot {
	s.Helper()
	slot, err := s.st.Open(s.Context(), key)
	if err != nil {
		s.Fatal(err)
	}
	return slot
}

func (s *slotSuite) check(slot tier.Slot, key block.Key) {
	s.Helper()
	if err := Check(s.c.Format, slot.Extent().Bytes(), key, 0); err != nil {
		s.Errorf("slot %d: %v", slot.Index(), err)
	}
}

func testFill(s *slotSuite) {
	f := s.reserve(Key(1))
	if got := s.state(s.st, Key(1)); got != tier.Filling {
		s.Errorf("a reserved block is %s", got)
	}
	s.wantMiss(s.st, Key(1))
	s.wantIs("delete while filling", s.st.Delete(s.Context(), Key(1)), errdefs.ErrBusy)
	s.fill(f, Key(1))
	s.wantMiss(s.st, Key(1)) // filled, but not published
	slot := s.publish(f)
	if slot.Index() != f.Index() || slot.Extent() != f.Extent() {
		s.Error("the published slot is not the filled one")
	}
	second := s.mustOpen(Key(1))
	if second.Index() != slot.Index() || second.Extent() != s.st.Slots().At(slot.Index()) {
		s.Error("the opened slot is not the published one")
	}
	s.check(second, Key(1))
	s.mustGet(s.st, Key(1))
	second.Release()
	slot.Release()
	s.mustGet(s.st, Key(1))
}

func testFillEndsOnce(s *slotSuite) {
	f := s.reserve(Key(1))
	s.fill(f, Key(1))
	slot := s.publish(f)
	f.Abort(errors.New("too late"))
	f.Quarantine(errors.New("too late"), nil)
	if second, err := f.Publish(); err == nil {
		second.Release()
		s.Error("published twice")
	}
	s.mustGet(s.st, Key(1))
	slot.Release()

	f = s.reserve(Key(2))
	s.fill(f, Key(2))
	f.Abort(errors.New("first"))
	other := s.reserve(Key(3)) // may reuse the slot
	f.Abort(errors.New("second"))
	if slot, err := f.Publish(); err == nil {
		slot.Release()
		s.Error("published after an abort")
	}
	s.wantMiss(s.st, Key(2))
	s.fill(other, Key(3))
	s.publish(other).Release()
	s.mustGet(s.st, Key(3))
}

func testSlotsAreDistinct(s *slotSuite) {
	var fills []tier.Fill
	seen := make(map[uint32]bool)
	for i := range slotCapacity {
		f := s.reserve(Key(i))
		if seen[f.Index()] {
			s.Errorf("slot %d was given twice", f.Index())
		}
		seen[f.Index()] = true
		if e := f.Extent(); e != s.st.Slots().At(f.Index()) || e.Len != s.imageBytes() || e.Validate() != nil {
			s.Errorf("slot %d is [%d, +%d)", f.Index(), e.Off, e.Len)
		}
		fills = append(fills, f)
	}
	for i, f := range fills {
		s.fill(f, Key(i))
	}
	for i, f := range fills {
		slot := s.publish(f)
		s.check(slot, Key(i))
		slot.Release()
	}
}

// testReserveExisting checks that Reserve returns ErrExists for a block that another caller is
// filling, so that the caller can wait for it.
func testReserveExisting(s *slotSuite) {
	f := s.reserve(Key(1))
	_, err := s.st.Reserve(s.Context(), Key(1))
	s.wantIs("reserve of a block being filled", err, errdefs.ErrExists)
	s.fill(f, Key(1))
	slot := s.publish(f)
	_, err = s.st.Reserve(s.Context(), Key(1))
	s.wantIs("reserve of a ready block", err, errdefs.ErrExists)
	slot.Release()
	_, err = s.st.Reserve(s.Context(), Key(1))
	s.wantIs("reserve of a ready block that is not pinned", err, errdefs.ErrExists)
	s.mustGet(s.st, Key(1))
}

type opened struct {
	slot tier.Slot
	err  error
}

// openLater calls Open in another goroutine and returns when Open is waiting.
func (s *slotSuite) openLater(ctx context.Context, key block.Key) <-chan opened {
	s.Helper()
	c := make(chan opened, 1)
	go func() {
		slot, err := s.st.Open(ctx, key)
		c <- opened{slot, err}
	}()
	synctest.Wait()
	select {
	case o := <-c:
		s.Fatalf("open of a block being filled did not wait: %v", o.err)
	default:
	}
	return c
}

func testOpenWaitsForPublish(s *slotSuite) {
	f := s.reserve(Key(1))
	var waits []<-chan opened
	for range 3 {
		waits = append(waits, s.openLater(s.Context(), Key(1)))
	}
	s.fill(f, Key(1))
	slot := s.publish(f)
	slot.Release()
	// The waiters hold pins even before they run, so the block is not evicted.
	for i := range 3 * slotCapacity {
		s.put(s.st, Key(100+i))
	}
	for _, w := range waits {
		o := <-w
		if o.err != nil {
			s.Fatal(o.err)
		}
		s.check(o.slot, Key(1))
		o.slot.Release()
	}
	if st, ok := s.stats(s.st); ok && st.Retained != 0 {
		s.Errorf("%d pins are counted at the end", st.Retained)
	}
}

// testOpenWaitsForAbort checks that a waiter returns, without spinning, if the filler fails.
func testOpenWaitsForAbort(s *slotSuite) {
	f := s.reserve(Key(1))
	waits := []<-chan opened{s.openLater(s.Context(), Key(1)), s.openLater(s.Context(), Key(1))}
	cause := errors.New("the loader died")
	f.Abort(cause)
	for _, w := range waits {
		o := <-w
		s.wantIs("open", o.err, errdefs.ErrNotFound, cause)
	}
	s.store(Key(1)).Release()
	s.mustGet(s.st, Key(1))
}

func testOpenGivesUp(s *slotSuite) {
	f := s.reserve(Key(1))
	cause := errors.New("too long")
	ctx, cancel := context.WithTimeoutCause(s.Context(), time.Hour, cause)
	defer cancel()
	w, other := s.openLater(ctx, Key(1)), s.openLater(s.Context(), Key(1))
	o := <-w
	s.wantIs("open", o.err, cause)
	s.fill(f, Key(1))
	s.publish(f).Release()
	(<-other).slot.Release()
	// A canceled Open holds no pin.
	if err := s.st.Delete(s.Context(), Key(1)); err != nil {
		s.Error(err)
	}
}

func testPutWaitsForFill(s *slotSuite) {
	src := s.image(Key(1))
	for _, publish := range []bool{true, false} {
		f := s.reserve(Key(1))
		done := make(chan error, 1)
		go func() { done <- s.st.Put(s.Context(), Key(1), src) }()
		synctest.Wait()
		select {
		case err := <-done:
			s.Fatalf("put of a block being filled did not wait: %v", err)
		default:
		}
		if publish {
			s.fill(f, Key(1))
			s.publish(f).Release()
		} else {
			f.Abort(errors.New("the other died"))
		}
		if err := <-done; err != nil {
			s.Errorf("published %v: %v", publish, err)
		}
		s.mustGet(s.st, Key(1))
		if err := s.st.Delete(s.Context(), Key(1)); err != nil {
			s.Error(err)
		}
	}
}

func testOpenBlocks(s *slotSuite) {
	slot := s.store(Key(1))
	for i := range 4 * slotCapacity {
		s.put(s.st, Key(10+i))
	}
	s.check(slot, Key(1))
	s.wantIs("delete of an open block", s.st.Delete(s.Context(), Key(1)), errdefs.ErrBusy)
	slot.Release()
	if err := s.st.Delete(s.Context(), Key(1)); err != nil {
		s.Error(err)
	}
}

func testReleaseTwice(s *slotSuite) {
	first, second := s.store(Key(1)), s.mustOpen(Key(1))
	first.Release()
	first.Release() // must not release the second pin
	s.wantIs("delete", s.st.Delete(s.Context(), Key(1)), errdefs.ErrBusy)
	second.Release()
	if err := s.st.Delete(s.Context(), Key(1)); err != nil {
		s.Error(err)
	}
	first.Release()
	slot := s.store(Key(2)) // may reuse the slot
	second.Release()
	s.wantIs("delete", s.st.Delete(s.Context(), Key(2)), errdefs.ErrBusy)
	slot.Release()
}
