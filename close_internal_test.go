package kvlane

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// TestDefectFailedOpenClosesWithoutEnd: what a failed opening leaves is closed for a while, and what does not close is named.
func TestDefectFailedOpenClosesWithoutEnd(t *testing.T) {
	c := newClosers()
	closed := 0
	c.addPlain("device", func() error { closed++; return nil })
	c.add("mover", func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	})
	c.addPlain("NICs", func() error { closed++; return nil })
	ended, cancel := context.WithCancel(t.Context())
	cancel() // that of the opening, which is why it failed
	err := c.undo(ended, 10*time.Millisecond)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "device, mover are still open") {
		t.Errorf("undo: %v", err)
	}
	if closed != 1 {
		t.Errorf("%d were closed, want the one above what did not close", closed)
	}
}

// TestClosersGoOnAfterWhatWasOnlyTold: what closes at the second try had a failure to tell.
func TestClosersGoOnAfterWhatWasOnlyTold(t *testing.T) {
	c := newClosers()
	closed := false
	c.addPlain("device", func() error { closed = true; return nil })
	failure := errors.New("it broke")
	tries := 0
	c.addPlain("stream", func() error {
		if tries++; tries == 1 {
			return failure
		}
		return nil
	})
	if err := c.close(t.Context()); !errors.Is(err, failure) || !closed {
		t.Errorf("close: %v, device closed: %t", err, closed)
	}
	if err := c.close(t.Context()); err != nil {
		t.Errorf("close again: %v", err)
	}
}
