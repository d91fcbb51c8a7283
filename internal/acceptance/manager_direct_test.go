package acceptance_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/store/manager"
)

// TestManagerOfDirectWorkers runs two workers, of which one often fails to read directly. After
// every job the manager's index must agree with the workers' pools.
func TestManagerOfDirectWorkers(t *testing.T) {
	const universe, capacity, steps = 12, 6, 120
	var ranks []kvlane.Config
	plan := fault.New(1)
	for r := range 2 {
		c := directConfig(t, "cache|file")
		c.Store.Direct = kvlane.DirectAlways
		if r == 1 {
			c.Device.Sim.Faults = plan
		}
		ranks = append(ranks, c)
	}
	m, err := kvlane.OpenManager(t.Context(), kvlane.ManagerConfig{Ranks: ranks, Blocks: capacity, Direct: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	workers := []*worker{newWorker(t, ranks[0]), newWorker(t, ranks[1])}
	rng := rand.New(rand.NewPCG(1, 2))
	some := func() (out []kvlane.Block) {
		from := rng.IntN(universe)
		for k := range 1 + rng.IntN(3) {
			out = append(out, kvlane.Block{Hash: fmt.Sprint((from + k) % universe)})
		}
		return out
	}
	all := make([]kvlane.Block, universe)
	for n := range all {
		all[n] = kvlane.Block{Hash: fmt.Sprint(n)}
	}
	for step := range steps {
		var j *kvlane.Job
		load := step >= universe
		if load {
			j, err = m.Load(t.Context(), some())
		} else {
			j, err = m.Store(all[step : step+1])
		}
		if errors.Is(err, errdefs.ErrNotFound) || errors.Is(err, errdefs.ErrBusy) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if plan.Clear(); rng.IntN(3) == 0 {
			plan.Add(fault.Nth(sim.OpFileRead, int(plan.Seen(sim.OpFileRead))).Fail(nil))
		}
		for _, w := range workers {
			if !load {
				w.store(t, j)
				continue
			}
			if failed := w.load(t, j); failed != nil {
				t.Errorf("step %d: blocks %v failed", step, failed)
			}
			if hits, err := w.e.Lookup(t.Context(), w.keys(j.Blocks)); err != nil {
				t.Fatal(err)
			} else if j.Direct {
				for i, h := range hits {
					if h.Tier == "cache" {
						err = errors.Join(err, j.FellBack(i))
					}
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := j.End(); err != nil {
			t.Fatal(err)
		}
		if j, err = m.Store(nil); err != nil { // the next job also contains the blocks that workers drop
			t.Fatal(err)
		}
		states, err := m.Lookup(t.Context(), all)
		if err != nil {
			t.Fatal(err)
		}
		for r, w := range workers {
			w.prepare(t, j)
			hits, err := w.e.Lookup(t.Context(), w.keys(all))
			if err != nil {
				t.Fatal(err)
			}
			for n, h := range hits {
				if in := h.Tier == "cache"; in != (states[n] == manager.InPool) {
					t.Errorf("step %d: block %d is in the pool of rank %d: %t, and state %d for the manager", step, n, r, in, states[n])
				}
			}
		}
		if err := j.End(); err != nil {
			t.Fatal(err)
		}
	}
	if s := m.Stats(); s.Direct == 0 || s.FellBack == 0 || s.Direct == s.FromFiles || s.FromPool == 0 {
		t.Errorf("%+v", s)
	}
	for r, w := range workers {
		if st := w.e.Store().Stats(); st.Direct == 0 || (st.DirectFailed > 0) != (r == 1) {
			t.Errorf("rank %d: %d blocks were read directly, %d attempts failed", r, st.Direct, st.DirectFailed)
		}
	}
}
