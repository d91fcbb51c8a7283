package remote_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/breaker"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/remote"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// explain returns the explanation of a block, and the index of the server that it names.
func (x *fixture) explain(i int) (e tier.Explanation, at int) {
	x.t.Helper()
	out := make([]tier.Explanation, 1)
	must(x.t, x.Explain(x.t.Context(), []block.Key{tiertest.Key(i)}, out))
	return out[0], slices.IndexFunc(x.ps, func(p *peer) bool { return p.name == out[0].Place })
}

// TestWhyNamesTheServer checks that the server of each block is named with the reason for it: home,
// former home, replica and substitute; and for a missing block the servers that were asked.
func TestWhyNamesTheServer(t *testing.T) {
	const blocks = 20
	ps := newPeers(t, 3, 1<<24)
	list := ps.members()
	x := newFixture(t, ps, func(c *remote.Config) {
		c.Breaker = breaker.Options{Failures: 1, Delay: time.Minute, MaxDelay: time.Minute}
	}, list...)
	on := make(map[int]int) // a block of each server
	for i := range blocks {
		x.put(i)
		e, at := x.explain(i)
		if has := ps.with(t, x.f, tiertest.Key(i)); e.State != tier.Ready || !slices.Equal(has, []int{at}) || !strings.HasSuffix(e.Reason, ": home of its run") {
			t.Fatalf("block %d, at %v: %+v", i, has, e)
		}
		on[at] = i
	}
	if len(on) != len(ps) {
		t.Fatalf("%d servers have blocks", len(on))
	}
	if e, at := x.explain(blocks); e.State != tier.Absent || at < 0 || !strings.HasPrefix(e.Reason, "asked block server "+ps[at].name+": home of its run") || e.Error != "" {
		t.Errorf("a missing block: %+v", e)
	}

	leaving := slices.Clone(list)
	leaving[1].Draining = true
	x.dir.set(leaving...)
	if e, at := x.explain(on[1]); at != 1 || e.State != tier.Ready || !strings.HasSuffix(e.Reason, ": home of its run until it began to drain") {
		t.Errorf("a block of a server that drains: %+v", e)
	}
	if e, at := x.explain(on[0]); at != 0 || !strings.HasSuffix(e.Reason, ": home of its run") {
		t.Errorf("a block of another server: %+v", e)
	}
	x.dir.set(list...)

	ps[2].stop(t)
	e, at := x.explain(on[2])
	if at != 2 || e.State != tier.Absent || !strings.Contains(e.Error, ps[2].name) {
		t.Errorf("a block of a server that is gone: %+v", e)
	}
	tiertest.Seal(t, x.f, x.buf.Bytes(), tiertest.Key(on[2]), 0)
	must(t, x.Put(t.Context(), tiertest.Key(on[2]), x.buf)) // the breaker is open: another server gets it
	if e, at := x.explain(on[2]); at == 2 || at < 0 || e.State != tier.Ready || e.Error != "" ||
		!strings.HasSuffix(e.Reason, ": stands in for the home "+ps[2].name+", which did not answer") {
		t.Errorf("a block at a substitute: %+v", e)
	}
}

// TestWhyNamesTheFormerHome checks the reason for blocks whose home joined later.
func TestWhyNamesTheFormerHome(t *testing.T) {
	ps := newPeers(t, 2, 1<<24)
	list := ps.members()
	x := newFixture(t, ps, func(c *remote.Config) { c.Ramp = time.Hour }, list[0])
	const blocks = 200
	for i := range blocks {
		x.put(i)
	}
	x.dir.set(list...)
	moved := 0
	for i := range blocks {
		e, at := x.explain(i)
		if at != 0 || e.State != tier.Ready {
			t.Fatalf("block %d: %+v", i, e)
		}
		if strings.HasSuffix(e.Reason, ": home of its run before "+list[1].Name+" joined") {
			moved++
		}
	}
	if moved == 0 || moved == blocks {
		t.Errorf("%d of %d blocks have a new home", moved, blocks)
	}
}
