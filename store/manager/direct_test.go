package manager_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store/manager"
)

// A direct job uses no slot and evicts no block. A second request brings the block to the pools.
func TestDirectJobs(t *testing.T) {
	m, below := openConfig(t, manager.Config{Direct: true}, 2, 1, 1)
	for _, h := range []string{"c", "d"} {
		below[0].there[formats(t, 0, 1, 1).Key(0, []byte(h))] = true
	}
	end(t, stored(t, m, "a", "b"))
	first := loaded(t, m, "a", "c")
	if !first.Direct || len(first.Evicted) != 0 {
		t.Errorf("direct %t, evicts %v", first.Direct, first.Evicted)
	}
	end(t, first)
	if got := states(t, m, "a", "b", "c"); !slices.Equal(got, []manager.State{manager.InPool, manager.InPool, manager.InFiles}) {
		t.Errorf("after the direct job: %v", got)
	}
	if j := loaded(t, m, "a"); j.Direct {
		t.Error("a job of blocks in pools is direct")
	} else {
		end(t, j)
	}
	second := loaded(t, m, "c")
	if second.Direct || !slices.Equal(hashes(second.Evicted), []string{"b"}) {
		t.Errorf("second job: direct %t, evicts %v", second.Direct, second.Evicted)
	}
	end(t, second)
	if s := m.Stats(); s.Direct != 1 || s.FromFiles != 2 || s.FromPool != 2 || s.Blocks != 2 {
		t.Errorf("%+v", s)
	}
}

// Blocks that a worker read through its pool are evicted, unless another job has brought them to
// all pools.
func TestWorkersFallBack(t *testing.T) {
	m, below := openConfig(t, manager.Config{Direct: true}, 4, 1, 1)
	for _, h := range []string{"a", "b"} {
		below[0].there[formats(t, 0, 1, 1).Key(0, []byte(h))] = true
	}
	direct := loaded(t, m, "a", "b")
	if err := direct.FellBack(0, 2); !errors.Is(err, errdefs.ErrInvalid) {
		t.Error(err)
	}
	pooled := loaded(t, m, "b")
	end(t, pooled)
	if err := direct.FellBack(0, 1); err != nil {
		t.Fatal(err)
	}
	end(t, direct)
	next := stored(t, m, "c")
	if got := hashes(next.Evicted); !slices.Equal(got, []string{"a"}) {
		t.Errorf("drops %v", got)
	}
	end(t, next, 0)
	if s := m.Stats(); s.FellBack != 1 || s.Forgotten != 1 {
		t.Errorf("%+v", s)
	}
}
