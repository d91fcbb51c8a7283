package unwind

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// TestDefectFailedOpenClosesWithoutEnd: what a failed opening leaves is closed for a while, and what does not close is named.
func TestDefectFailedOpenClosesWithoutEnd(t *testing.T) {
	c := New()
	closed := 0
	c.AddPlain("device", func() error { closed++; return nil })
	c.Add("mover", func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	})
	c.AddPlain("NICs", func() error { closed++; return nil })
	ended, cancel := context.WithCancel(t.Context())
	cancel() // that of the opening, which is why it failed
	err := c.Undo(ended, 10*time.Millisecond)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "device, mover are still open") {
		t.Errorf("Undo: %v", err)
	}
	if closed != 1 {
		t.Errorf("%d were closed, want the one above what did not close", closed)
	}
}

// TestStackContinuesAfterAClosedResourceReportsAnError: what closes at the second try had a failure to tell.
func TestStackContinuesAfterAClosedResourceReportsAnError(t *testing.T) {
	c := New()
	closed := false
	c.AddPlain("device", func() error { closed = true; return nil })
	failure := errors.New("it broke")
	tries := 0
	c.AddPlain("stream", func() error {
		if tries++; tries == 1 {
			return failure
		}
		return nil
	})
	if err := c.Close(t.Context()); !errors.Is(err, failure) || !closed {
		t.Errorf("close: %v, device closed: %t", err, closed)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Errorf("close again: %v", err)
	}
}
