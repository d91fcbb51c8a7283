package cache

import "github.com/kvlane/kvlane/block"

// Policy is the eviction policy by itself, for tests.
type Policy struct{ *policy }

// NewPolicy returns the policy of n slots.
func NewPolicy(n int, pinned func(uint32) bool) Policy { return Policy{newPolicy(n, pinned)} }

// The steps that the tier takes.
func (p Policy) Admit(slot uint32, key block.Key) { p.admit(slot, key) }
func (p Policy) Use(slot uint32)                  { p.use(slot) }
func (p Policy) Link(slot uint32)                 { p.link(slot) }
func (p Policy) Victim() (uint32, bool)           { return p.victim() }
func (p Policy) Remove(slot uint32)               { p.remove(slot) }

// Candidates counts the slots that are linked.
func (p Policy) Candidates() int { return p.queues[inSmall].len + p.queues[inMain].len }
