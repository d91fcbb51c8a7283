package move

import (
	"math/rand/v2"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream/copy/describe"
)

// TestRing acquires and releases spans of random sizes. Spans in use must not overlap, and an idle
// ring must always have space.
func TestRing(t *testing.T) {
	dev, err := sim.Open(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := NewRing(dev, 4096/device.CopyDescBytes)
	if err := r.prepare(); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	type taken struct {
		from, to mem.DevAddr
		end      uint64 // position to release
	}
	var out []taken
	refused := 0
	for range 10_000 {
		sp, ok := r.reserve(1 + rng.Uint64N(2000))
		if ok {
			used := describe.Align(1+rng.Uint64N(uint64(len(sp.buf))), describe.TableAlign)
			used = min(used, uint64(len(sp.buf)))
			n := taken{from: sp.dev, to: sp.dev + mem.DevAddr(used), end: sp.end - uint64(len(sp.buf)) + used}
			for _, o := range out {
				if n.from < o.to && o.from < n.to {
					t.Fatalf("[%#x, %#x) was given out while [%#x, %#x) was", n.from, n.to, o.from, o.to)
				}
			}
			if base := r.region.Dev(); n.from < base || n.to > base+mem.DevAddr(r.size) {
				t.Fatalf("[%#x, %#x) is outside the ring", n.from, n.to)
			}
			r.take(n.end)
			out = append(out, n)
		} else {
			refused++
		}
		for len(out) > 0 && (rng.IntN(3) == 0 || !ok) {
			r.giveBack(out[0].end)
			out = out[1:]
			if !ok && len(out) == 0 {
				if _, ok := r.reserve(4096); !ok {
					t.Fatal("an idle ring has no room")
				}
			}
		}
	}
	if refused == 0 {
		t.Error("the ring was never full: nothing was tested")
	}
	if err := r.free(); err != nil {
		t.Error(err)
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}
