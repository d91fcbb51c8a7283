package copy_test

import (
	"testing"
	"time"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// sumsTold is a planner that takes the path it is told to, and notes which paths it was said leave sums to a CPU.
type sumsTold struct {
	path     stream.Path
	can      plan.Paths
	unsummed plan.Paths
}

func (p *sumsTold) Choose(r plan.Request, can plan.Paths) plan.Choice {
	p.can, p.unsummed = can, r.Unsummed
	return plan.Choice{Path: p.path}
}

func (*sumsTold) Observe(plan.Choice, plan.Request, time.Duration) {}

// TestPlannerHearsWhoSums: what the planner is told of sums is what the paths then do.
func TestPlannerHearsWhoSums(t *testing.T) {
	dev := openSim(t, sim.Options{})
	host, pages := pinned(t, dev, 1<<20), deviceMemory(t, dev, 1<<20)
	reported := &sumsTold{path: stream.PathCopyEngine}
	s := open(t, dev, streamcopy.Options{Planner: reported})
	summed := 0
	for _, p := range stream.Paths() {
		if !reported.can.Has(p) && p != reported.path {
			continue
		}
		reported.path = p
		b := benchPaged(host, pages, 4, 8, mem.LeafBytes)
		b.Paged.Sums = make([]uint64, 4*8)
		c := complete(t, s, b)
		if c.Path != p || c.Summed == reported.unsummed.Has(p) {
			t.Errorf("by %s, summed %t; the planner heard of %s: not summed %t", c.Path, c.Summed, p, reported.unsummed.Has(p))
		}
		if c.Summed {
			summed++
		}
		b.Paged.Sums = nil
		if complete(t, s, b); reported.unsummed != 0 {
			t.Errorf("by %s: the planner heard that sums are wanted", p)
		}
	}
	if summed != 2 {
		t.Errorf("%d paths summed, want kernel and staged", summed)
	}
	closeStream(t, s)
}
