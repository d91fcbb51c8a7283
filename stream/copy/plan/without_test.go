package plan_test

import (
	"math/rand/v2"
	"testing"

	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// What was left out is chosen for nothing that anything else can take, under any policy.
func TestChoosesWithout(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	without := plan.PathSet(stream.PathKernel, stream.PathStaged)
	all, err := plan.New(randomProfile(rng), plan.Options{Without: without})
	if err != nil {
		t.Fatal(err)
	}
	for goal := range plan.Background + 1 {
		p, err := all.With(plan.Policy{Goal: goal})
		if err != nil {
			t.Fatal(err)
		}
		for range 500 {
			r := plan.Request{Dir: plan.H2D, Pieces: 1 + rng.IntN(1000), Bytes: 1 << (8 + rng.IntN(20))}
			if c := p.Choose(r, allPaths); without.Has(c.Path) || c.Path == stream.PathNone {
				t.Fatalf("%+v goes by %s under policy %d", r, c.Path, goal)
			}
			if c := p.Choose(r, without.Without(stream.PathStaged)); c.Path != stream.PathKernel {
				t.Fatalf("%+v goes by %s in place of the only path that takes it", r, c.Path)
			}
		}
	}
}
