package plan_test

import (
	"math/rand/v2"
	"testing"

	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// Under every policy an excluded path is used only for requests that no other path can carry.
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
				t.Fatalf("%+v uses %s under policy %d", r, c.Path, goal)
			}
			if c := p.Choose(r, without.Without(stream.PathStaged)); c.Path != stream.PathKernel {
				t.Fatalf("%+v uses %s instead of the only possible path", r, c.Path)
			}
		}
	}
}
