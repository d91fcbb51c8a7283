package index

import "github.com/kvlane/kvlane/block"

// Use records the order of blocks for the tiers (tier.OrderedTier), and reports the use of blocks
// to the tiers below the first. keys are consecutive blocks of a prompt. before is the key of the
// block before the first, or zero if there is none or it is unknown. Call Use before the blocks are
// read or written.
func (x *Index) Use(before block.Key, keys []block.Key) {
	x.note(before, keys, 0)
	x.used(before, keys)
}

// note records the order of keys[from:]. before precedes keys[0].
func (x *Index) note(before block.Key, keys []block.Key, from int) {
	if from == len(keys) {
		return
	}
	at := x.order.After(before, keys[0])
	if from > 0 {
		at.Before, at.Position = keys[from-1], at.Position+from
	}
	x.order.Note(keys[from:], at)
}

// used reports the use of blocks to the tiers below the first. Their own reads and writes do not
// show all uses.
func (x *Index) used(before block.Key, keys []block.Key) {
	if len(keys) == 0 {
		return
	}
	for _, t := range x.below {
		t.Use(keys, x.order.After(before, keys[0]))
	}
}
