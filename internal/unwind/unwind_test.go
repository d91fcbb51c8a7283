package unwind

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// TestDefectFailedOpenClosesWithoutEnd checks that resources of a failed open are closed for a
// limited time, and that one that does not close is named in the error.
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
	cancel() // the context of the open, which failed because of it
	err := c.Undo(ended, 10*time.Millisecond)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "device, mover are still open") {
		t.Errorf("Undo: %v", err)
	}
	if closed != 1 {
		t.Errorf("%d were closed, want only the one above the stuck resource", closed)
	}
}

// TestStackContinuesAfterAClosedResourceReportsAnError checks a resource that closes at the second
// attempt. The first error is still reported.
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
