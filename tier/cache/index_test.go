package cache_test

import (
	"math/rand/v2"
	"testing"

	"github.com/kvlane/kvlane/tier/cache"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// After random additions and removals the index finds exactly the present keys. The tables are so
// small that most keys are displaced.
func TestIndex(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for _, slots := range []int{1, 2, 4, 8, 64} {
		for range 40 { // each run has its own seed
			ks := tiertest.Keys(rng.Perm(2 * slots)...)
			x := cache.NewIndex(ks[:slots])
			there := make([]bool, 2*slots)
			for range 20 * slots {
				if s := rng.IntN(slots); there[s] {
					x.Forget(uint32(s))
					there[s] = false
				} else {
					x.Add(uint32(s))
					there[s] = true
				}
				for i := range ks {
					if at, ok := x.Find(ks[i]); ok != there[i] || ok && at != uint32(i) {
						t.Fatalf("%d slots: block of slot %d: found %v in slot %d, want %v", slots, i, ok, at, there[i])
					}
				}
			}
		}
	}
}
