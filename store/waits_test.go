package store_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/tier"
)

// roomlessTier has no space: Put waits until its context ends.
type roomlessTier struct{ tier.Tier }

func (roomlessTier) Put(ctx context.Context, _ block.Key, _ mem.Extent) error {
	<-ctx.Done()
	return fmt.Errorf("no room: %w: %w", errdefs.ErrBusy, context.Cause(ctx))
}

// The time limit of a wait for space also covers writes that are queued behind that wait. They must
// not each wait for the limit again.
func TestDefectWaitsForSpaceAddUp(t *testing.T) {
	t.Parallel()
	testkit.Grow(t, time.Second, func(waitMax time.Duration) error {
		r := newRig(t, rigOptions{
			slots: 8, dirs: []string{t.TempDir()},
			wrapFile: func(tr tier.Tier) tier.Tier { return roomlessTier{tr} },
			tune:     func(c *store.Config) { c.Writers, c.WaitMax = 1, waitMax },
		})
		began := time.Now()
		d := r.startDump(0, 1, 2, 3, 4, 5)
		err := d.Durable(r.ctx())
		if took := time.Since(began); took > 5*waitMax {
			return fmt.Errorf("6 blocks without room failed after %v, each may wait for %v: %w", took, waitMax, err)
		}
		return nil
	})
}

// A task starts even if its context has ended, as long as it need not wait for a place.
func TestTasksBeginWithoutWaitingIfThereIsSpace(t *testing.T) {
	r := newRig(t, rigOptions{slots: 8})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		task, err := r.st.Prefetch(ctx, nil)
		if err == nil {
			err = task.Wait(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
