package blockio

import (
	"context"
	"errors"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
)

// A queued call whose context has ended gets no credit, also if its caller has not removed it yet.
func TestEndedCallsAreNotSent(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	queued := func(ctx context.Context, id uint64) *call {
		return &call{request: Request{Op: OpRetrieve, ID: id}, ctx: ctx, done: make(chan struct{}, 1)}
	}
	first, second, third := queued(ended, 1), queued(ended, 2), queued(t.Context(), 3)
	c := &conn{credits: 1, calls: make(map[uint64]*call), queue: []*call{first, second, third}}
	if got := c.next(); got != third {
		t.Fatalf("the next call is %+v, not the third", got)
	}
	for _, k := range []*call{first, second} {
		if <-k.done; !errors.Is(k.err, errdefs.ErrCanceled) {
			t.Errorf("call %d: %v", k.request.ID, k.err)
		}
	}
	if c.next() != nil || c.credits != 0 || len(c.calls) != 1 {
		t.Errorf("%d credits, %d calls", c.credits, len(c.calls))
	}
}
