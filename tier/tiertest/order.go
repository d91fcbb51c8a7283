package tiertest

import (
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier"
)

// Of prompts that are used by turns, and do not fit together, the beginnings stay.
const (
	orderRoom   = 40
	orderPrompt = 32
	orderLeast  = (orderRoom - orderPrompt) / 2 // blocks of a prompt that stay: half of the free slots
)

// prompt returns the keys of a prompt that shares no block with others.
func prompt(n int) (keys []block.Key) {
	for i := range orderPrompt {
		keys = append(keys, Key(1000*n+i))
	}
	return keys
}

// ordered opens a tier, and returns false where it has no order.
func (s *suite) ordered(o *tier.Order) (tier.Tier, bool) {
	s.Helper()
	tr := s.open(orderRoom)
	ordered, ok := tr.(tier.OrderedTier)
	if ok {
		ordered.SetOrder(o)
	}
	return tr, ok
}

// turn makes the tier calls of a store for a request. It returns the number of blocks of the prompt
// that were found, and stores the others.
func (s *suite) turn(tr tier.Tier, o *tier.Order, keys []block.Key) (found int) {
	s.Helper()
	found, err := tr.Retain(s.Context(), keys)
	if err != nil {
		s.Fatal(err)
	}
	o.Note(keys, tier.Place{})
	if ordered, ok := tr.(tier.OrderedTier); ok && found > 0 {
		ordered.Use(keys[:found], tier.Place{})
	}
	tr.Release(keys[:found])
	for _, key := range keys[found:] {
		s.put(tr, key)
	}
	return found
}

// testOrder: of two alternating prompts, with slots for one and a quarter, each turn finds blocks.
func testOrder(s *suite) {
	o := tier.NewOrder(tier.OrderKeys)
	tr, ok := s.ordered(o)
	if !ok {
		return
	}
	var found []int
	sum := 0
	for i := range 8 {
		n := s.turn(tr, o, prompt(i%2))
		if found = append(found, n); i >= 2 {
			sum += n
		}
	}
	if sum < 6*orderLeast {
		s.Errorf("found of %d blocks, by turns: %v; want %d of the last six together", orderPrompt, found, 6*orderLeast)
	}
}

// testOrderReopened: a prompt stored before a restart is evicted from its end after the restart.
func testOrderReopened(s *suite) {
	o := tier.NewOrder(tier.OrderKeys)
	tr, ok := s.ordered(o)
	if !ok {
		return
	}
	first, second := prompt(0), prompt(1)
	s.turn(tr, o, first)
	tr = s.c.Reopen(s.T, tr)
	o = tier.NewOrder(tier.OrderKeys) // the new process knows no place
	if ordered, ok := tr.(tier.OrderedTier); ok {
		ordered.SetOrder(o)
	}
	s.turn(tr, o, second)
	n, err := tr.Retain(s.Context(), first)
	if err != nil {
		s.Fatal(err)
	}
	tr.Release(first[:n])
	if n < orderLeast {
		s.Errorf("%d of %d blocks of the first prompt are found after the second, want %d", n, orderPrompt, orderLeast)
	}
}
