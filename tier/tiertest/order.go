package tiertest

import (
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier"
)

// Sizes for two alternating prompts that do not fit together, so that only their beginnings stay.
const (
	orderSlots  = 40
	orderPrompt = 32
	// number of blocks of a prompt that stay: half of the free slots
	orderLeast = (orderSlots - orderPrompt) / 2
)

// prompt returns the keys of prompt n. Prompts have no common blocks.
func prompt(n int) (keys []block.Key) {
	for i := range orderPrompt {
		keys = append(keys, Key(1000*n+i))
	}
	return keys
}

// ordered opens a tier. It returns false if the tier is not an OrderedTier.
func (s *suite) ordered(o *tier.Order) (tier.Tier, bool) {
	s.Helper()
	tr := s.open(orderSlots)
	ordered, ok := tr.(tier.OrderedTier)
	if ok {
		ordered.SetOrder(o)
	}
	return tr, ok
}

// request makes the calls of a store for a request with this prompt. It returns the number of
// blocks that were found, and stores the others.
func (s *suite) request(tr tier.Tier, o *tier.Order, keys []block.Key) (found int) {
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

// testOrder alternates two prompts, with slots for one and a quarter. Each request must find some
// blocks.
func testOrder(s *suite) {
	o := tier.NewOrder(tier.OrderKeys)
	tr, ok := s.ordered(o)
	if !ok {
		return
	}
	var found []int
	sum := 0
	for i := range 8 {
		n := s.request(tr, o, prompt(i%2))
		if found = append(found, n); i >= 2 {
			sum += n
		}
	}
	if sum < 6*orderLeast {
		s.Errorf("found of %d blocks, by turns: %v; want %d of the last six together", orderPrompt, found, 6*orderLeast)
	}
}

// testOrderReopened stores a prompt and reopens the tier. The prompt must be evicted from its end.
func testOrderReopened(s *suite) {
	o := tier.NewOrder(tier.OrderKeys)
	tr, ok := s.ordered(o)
	if !ok {
		return
	}
	first, second := prompt(0), prompt(1)
	s.request(tr, o, first)
	tr = s.c.Reopen(s.T, tr)
	o = tier.NewOrder(tier.OrderKeys) // a new process has no places
	if ordered, ok := tr.(tier.OrderedTier); ok {
		ordered.SetOrder(o)
	}
	s.request(tr, o, second)
	n, err := tr.Retain(s.Context(), first)
	if err != nil {
		s.Fatal(err)
	}
	tr.Release(first[:n])
	if n < orderLeast {
		s.Errorf("%d of %d blocks of the first prompt are found after the second, want %d", n, orderPrompt, orderLeast)
	}
}
