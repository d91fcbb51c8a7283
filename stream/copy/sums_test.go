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

// sumPlanner is a planner with a fixed path. It records which paths leave checksums to the CPU.
type sumPlanner struct {
	path     stream.Path
	can      plan.Paths
	unsummed plan.Paths
}

func (p *sumPlanner) Choose(r plan.Request, can plan.Paths) plan.Choice {
	p.can, p.unsummed = can, r.Unsummed
	return plan.Choice{Path: p.path}
}

func (*sumPlanner) Observe(plan.Choice, plan.Request, time.Duration) {}

// TestPlannerReceivesPathsThatSum checks that the planner gets the right information about which
// paths compute checksums.
func TestPlannerReceivesPathsThatSum(t *testing.T) {
	dev := openSim(t, sim.Options{})
	host, pages := pinned(t, dev, 1<<20), deviceMemory(t, dev, 1<<20)
	reported := &sumPlanner{path: stream.PathCopyEngine}
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
			t.Errorf("path %s, summed %t; the planner was informed about %s: not summed %t", c.Path, c.Summed, p, reported.unsummed.Has(p))
		}
		if c.Summed {
			summed++
		}
		b.Paged.Sums = nil
		if complete(t, s, b); reported.unsummed != 0 {
			t.Errorf("path %s: the planner was informed that checksums are requested", p)
		}
	}
	if summed != 2 {
		t.Errorf("%d paths summed, want kernel and staged", summed)
	}
	closeStream(t, s)
}
