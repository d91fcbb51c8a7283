package cache_test

import (
	"math/rand/v2"
	"testing"

	"github.com/kvlane/kvlane/tier/cache"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// Pinned slots are never chosen, and become candidates again when they are released.
func TestPolicySkipsPinned(t *testing.T) {
	const n = 32
	p := cache.NewPolicy(n)
	for slot := range uint32(n) {
		p.Admit(slot, tiertest.Key(int(slot)))
		p.Release(slot)
		if slot%4 != 0 {
			p.Pin(slot)
		}
	}
	seen := map[uint32]bool{}
	for range n / 4 {
		slot, ok := p.Victim()
		if !ok || slot%4 != 0 || seen[slot] {
			t.Fatalf("victim %d, %v; pinned %v, seen %v", slot, ok, slot%4 != 0, seen[slot])
		}
		seen[slot] = true
	}
	if slot, ok := p.Victim(); ok {
		t.Fatalf("victim %d with all others pinned", slot)
	}
	p.Release(5)
	p.Release(5) // a second release has no effect
	if slot, ok := p.Victim(); !ok || slot != 5 {
		t.Errorf("victim %d, %v; want the slot that was released", slot, ok)
	}
	if p.Candidates() != 0 {
		t.Errorf("%d candidates are left", p.Candidates())
	}
}

// The end of a prompt is evicted before its beginning, regardless of uses.
func TestPolicyEvictsPromptsFromTheirEnds(t *testing.T) {
	const n = 40
	p := cache.NewPolicy(n)
	for slot := range uint32(n) { // 4 prompts of 10 blocks, stored alternately
		prompt, at := slot%4, slot/4
		p.Admit(slot, tiertest.Key(int(slot)))
		if at > 0 {
			p.Follow(slot, slot-4)
		}
		if prompt == 0 {
			p.Use(slot)
		}
		p.Release(slot)
	}
	left := [4]uint32{10, 10, 10, 10}
	for range n {
		slot, ok := p.Victim()
		if !ok {
			t.Fatal("no victim was found")
		}
		prompt, at := slot%4, slot/4
		if left[prompt]--; at != left[prompt] {
			t.Fatalf("block %d of prompt %d was evicted, and %d after it were there", at, prompt, left[prompt]-at)
		}
		// Below this size the small queue keeps its blocks.
		if prompt == 0 && left[1]+left[2]+left[3] >= n/4 {
			t.Errorf("a used prompt was evicted before the others: %v blocks are left", left)
		}
	}
}

// A block whose successors are pinned is evicted only if no other block can be.
func TestPolicyKeepsBlocksBeforePinnedOnes(t *testing.T) {
	p := cache.NewPolicy(4)
	for slot := range uint32(4) {
		p.Admit(slot, tiertest.Key(int(slot)))
		p.Release(slot)
	}
	p.Follow(1, 0)
	p.Pin(1)
	for _, want := range []uint32{2, 3, 0} {
		if slot, ok := p.Victim(); !ok || slot != want {
			t.Fatalf("victim %d, %v; want %d", slot, ok, want)
		}
	}
	if slot, ok := p.Victim(); ok {
		t.Fatalf("victim %d, which is pinned", slot)
	}
	p.Release(1)
	if slot, ok := p.Victim(); !ok || slot != 1 {
		t.Fatalf("victim %d, %v; want 1", slot, ok)
	}
}

// Successors that form a cycle are ignored.
func TestPolicyBreaksCircles(t *testing.T) {
	p := cache.NewPolicy(3)
	for slot := range uint32(3) {
		p.Admit(slot, tiertest.Key(int(slot)))
		p.Release(slot)
	}
	for slot := range uint32(3) {
		p.Follow(slot, slot)
		p.Follow(slot, (slot+1)%3)
	}
	for range 3 {
		if _, ok := p.Victim(); !ok {
			t.Fatal("blocks that come after one another are never evicted")
		}
	}
}

// modelled is the expected state of a slot.
type modelled struct {
	there, pinned bool
	parent        int // -1: no present parent
}

// The policy is compared with a model. A victim is present and not pinned, and has no successor
// that could be evicted. If a slot is not pinned, there is a victim.
func TestPolicyModel(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		n := 1 + rng.IntN(40)
		p := cache.NewPolicy(n)
		model := make([]modelled, n)
		gone := func(slot uint32) {
			model[slot] = modelled{}
			for i := range model {
				if model[i].parent == int(slot) {
					model[i].parent = -1
				}
			}
		}
		victim := func() {
			t.Helper()
			candidates := 0
			for _, m := range model {
				if m.there && !m.pinned {
					candidates++
				}
			}
			slot, ok := p.Victim()
			if ok != (candidates > 0) {
				t.Fatalf("seed %d: a victim: %v, of %d candidates", seed, ok, candidates)
			}
			if !ok {
				return
			}
			if m := model[slot]; !m.there || m.pinned {
				t.Fatalf("seed %d: victim %d is %+v", seed, slot, m)
			}
			for i, m := range model {
				if m.there && !m.pinned && m.parent == int(slot) {
					t.Fatalf("seed %d: victim %d, although %d is its successor", seed, slot, i)
				}
			}
			gone(slot)
		}
		for range 3000 {
			slot := uint32(rng.IntN(n))
			m := &model[slot]
			switch {
			case !m.there:
				p.Admit(slot, tiertest.Key(rng.IntN(3*n)))
				*m = modelled{there: true, pinned: true, parent: -1}
			case rng.IntN(6) == 0:
				p.Use(slot)
			case rng.IntN(4) == 0: // a block comes after one in a slot of a lower number, so that there are no circles
				if before := rng.IntN(int(slot) + 1); before != int(slot) && model[before].there {
					p.Follow(slot, uint32(before))
					if m.parent < 0 { // otherwise the first parent stays
						m.parent = before
					}
				}
			case rng.IntN(3) == 0:
				if m.pinned = !m.pinned; m.pinned {
					p.Pin(slot)
				} else {
					p.Release(slot)
				}
			case rng.IntN(8) == 0:
				p.Remove(slot)
				gone(slot)
			default:
				victim()
			}
		}
		for slot := range model {
			model[slot].pinned = false
			if model[slot].there {
				p.Release(uint32(slot))
			}
		}
		for range n + 1 {
			victim()
		}
		if p.Candidates() != 0 {
			t.Fatalf("seed %d: candidates are left", seed)
		}
	}
}
