package copy

import (
	"math/rand/v2"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/mem"
)

// TestClaims compares with a map of every byte: two batches never both get a byte, and one that writes to granules where no
// other does always gets them.
func TestClaims(t *testing.T) {
	dev, err := sim.Open(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const bytes = 40 * granuleBytes
	r, err := dev.Alloc(bytes, device.AllocOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var c claims
	rng := rand.New(rand.NewPCG(3, 4))
	refused, granted := 0, 0
	for range 300 {
		c.begin()
		var owner [bytes]uint32
	chunk: // a refusal ends it
		for batch := uint32(1); batch < 9; batch++ {
			for range 5 {
				n := 1 + rng.Int64N(3*granuleBytes)>>rng.IntN(12)
				e := mem.Extent{Region: r, Off: rng.Int64N(bytes - n), Len: n}
				overlap, alone := false, true
				for i := e.Off &^ (granuleBytes - 1); i < (e.Off+n+granuleBytes-1)&^(granuleBytes-1); i++ {
					within := i >= e.Off && i < e.Off+n
					if other := owner[i]; other != 0 && other != batch {
						alone, overlap = false, overlap || within
					}
				}
				switch ok := c.claim(e.Dev(), uint64(e.Len), batch); {
				case ok && overlap:
					t.Fatalf("batch %d got [%d, %d), which another has", batch, e.Off, e.Off+n)
				case !ok && alone:
					t.Fatalf("batch %d did not get [%d, %d), where nobody else is", batch, e.Off, e.Off+n)
				case !ok:
					refused++
					break chunk
				}
				granted++
				for i := e.Off; i < e.Off+n; i++ {
					owner[i] = batch
				}
			}
		}
	}
	if refused == 0 || granted == 0 {
		t.Errorf("%d refused, %d granted", refused, granted)
	}
	c.round = ^uint32(0)
	c.begin()
	if !c.claim(r.Dev(), bytes, 1) {
		t.Error("what was claimed long ago is claimed still")
	}
	for i := range uint64(mostClaims) {
		if !c.claimGranule(1<<40+i, 0, 1, 1) {
			if i != mostClaims-bytes/granuleBytes {
				t.Errorf("full after %d granules", i)
			}
			break
		}
	}
	if err := dev.Free(r); err != nil {
		t.Error(err)
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}
