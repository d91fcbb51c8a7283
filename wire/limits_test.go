package wire_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/wire"
)

// TestSlots checks that a new connection takes the slot that has been idle for the longest time,
// but never that of a busy connection.
func TestSlots(t *testing.T) {
	s := wire.NewSlots(3)
	var ended []int
	take := func(n int) *wire.Slot { return s.Take(func() { ended = append(ended, n) }) }
	busy, first, second := take(0), take(1), take(2)
	busy.Busy()
	second.Idle()
	time.Sleep(wire.Grace) // a slot must be idle for Grace before another connection takes it
	third := take(3)
	fourth := take(4)
	if third == nil || fourth == nil || !slices.Equal(ended, []int{1, 2}) {
		t.Fatalf("ended %v", ended)
	}
	third.Busy()
	fourth.Busy()
	if take(5) != nil {
		t.Error("a slot of a busy connection was given away")
	}
	s.Release(first) // its slot was taken already
	if take(5) != nil {
		t.Error("a slot was released twice")
	}
	s.Release(third)
	if take(5) == nil {
		t.Error("a free slot is not taken")
	}
}

// TestBudget checks that large requests wait for memory up to a limit, and small ones do not wait.
func TestBudget(t *testing.T) {
	b := wire.NewBudget(100, 10, time.Millisecond)
	release, err := b.Take(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Take(t.Context(), 60); !errors.Is(err, errdefs.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("beyond the budget: %v", err)
	}
	for range 100 {
		if _, err := b.Take(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
	}
	release()
	if _, err := b.Take(t.Context(), 100); err != nil {
		t.Error(err)
	}
}

// TestPace checks that a peer has the time limit for each PaceBytes, and that time between waits
// does not count.
func TestPace(t *testing.T) {
	p := wire.NewPace(time.Hour)
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	for range 10 {
		if err := errors.Join(p.Moved(wire.PaceBytes-1, ago(50*time.Minute)), p.Moved(1, ago(50*time.Minute))); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		p.Begin()
		if err := p.Moved(1, ago(50*time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Moved(1, ago(50*time.Minute)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a byte in 50 minutes: %v", err)
	}
}
