package copy_test

import (
	"testing"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// TestLongBatchesStartEarly checks when a batch is launched in parts. On an idle stream a long
// batch starts with a short part, so that the device starts early; a short batch is one part. If
// other batches are running, there is time to describe all of it first.
func TestLongBatchesStartEarly(t *testing.T) {
	const page, block = 64, 3000
	for name, tt := range map[string]struct {
		list                 bool
		pieces, idle, behind int64
	}{
		"short pages":     {false, 8192, 1, 1},
		"long pages":      {false, 20_000, 2, 1},
		"very long pages": {false, 100_000, 3, 1},
		"short list":      {true, 1000, 1, 1},
		"long list":       {true, 4000, 2, 1},
	} {
		faults := fault.New(1, fault.Nth(sim.OpLaunch, 0).Stall())
		dev := openSim(t, sim.Options{Faults: faults})
		slots, pages := pinned(t, dev, tt.pieces*(block+1)), deviceMemory(t, dev, tt.pieces*(block+1))
		s := open(t, dev, streamcopy.Options{Path: stream.PathKernel})
		batch := benchPaged(slots, pages, 1, int(tt.pieces), page)
		if tt.list {
			batch = streamtest.Strided(slots, pages, int(tt.pieces), block)
		}
		first := submitOK(t, s, batch)
		if n := faults.Seen(sim.OpCallLaunch); n != tt.idle {
			t.Errorf("%s: %d launches on an idle stream, want %d", name, n, tt.idle)
		}
		second := submitOK(t, s, batch)
		faults.Release()
		for _, ticket := range []*stream.Ticket{first, second} {
			if err := ticket.Wait(deadline(t)); err != nil {
				t.Fatal(err)
			}
		}
		if n := faults.Seen(sim.OpCallLaunch); n != tt.idle+tt.behind {
			t.Errorf("%s: %d launches behind another batch, want %d", name, n-tt.idle, tt.behind)
		}
		closeStream(t, s)
	}
}
