package store_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"
)

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
