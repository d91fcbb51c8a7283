package store_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/kvlane/kvlane/store"
)

type modelConfig struct {
	name      string
	slots     int // default: 8
	window    bool
	dirs      int
	log       bool // add a log below the directories
	layerwise bool
	faults    bool

	policy     store.VerifyPolicy
	groups     int   // number of page groups, default 1
	planeBytes int64 // default 128, which is not a whole leaf
	sums       int   // rigOptions.sumEvery
	corrupt    bool  // some copies flip a bit; the store finds it if all batches are summed
	planned    bool  // the planner selects the path; otherwise the kernel path
	direct     bool  // loads read files to device memory; with faults, some reads return wrong bytes
}

func runModels(t *testing.T, cs []modelConfig) {
	t.Helper()
	for _, c := range cs {
		for _, seed := range modelSeeds(t) {
			t.Run(fmt.Sprintf("%s/seed=%d", c.name, seed), func(t *testing.T) {
				t.Parallel()
				runModel(t, c, seed)
			})
		}
	}
}

func modelSeeds(t *testing.T) []uint64 {
	t.Helper()
	number := func(name string) (uint64, bool) {
		v := os.Getenv(name)
		if v == "" {
			return 0, false
		}
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return n, true
	}
	if seed, ok := number("KVLANE_STORE_SEED"); ok {
		return []uint64{seed}
	}
	n, ok := number("KVLANE_STORE_SEEDS")
	if !ok {
		n = 2
	}
	var seeds []uint64
	for i := range n {
		seeds = append(seeds, i+1)
	}
	return seeds
}
