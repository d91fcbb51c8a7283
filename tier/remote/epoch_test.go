package remote_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlane/kvlane/tier/remote"
)

// A server whose epoch the directory never has, as after a restore of the directory, does not cause
// a read of the directory with every result.
func TestALaterEpochIsRefreshedOncePerPause(t *testing.T) {
	ps := newPeers(t, 1, 1<<24)
	var reads atomic.Int64
	x := newFixture(t, ps, func(c *remote.Config) {
		d, ok := c.Members.(*directory)
		if !ok {
			t.Fatal("the list is no directory")
		}
		d.epoch = 7
		d.refreshed = func() error { reads.Add(1); return nil }
	}, ps.members()...)
	x.put(0)
	begun := time.Now()
	for epoch := uint64(100); epoch < 200; epoch++ {
		ps[0].epoch.Store(epoch)
		x.present(1)
		time.Sleep(time.Millisecond)
	}
	// A pause is a second.
	if n := reads.Load(); n < 1 || n > 2+int64(time.Since(begun)/time.Second) {
		t.Errorf("%d reads of the directory for 100 results", n)
	}
}
