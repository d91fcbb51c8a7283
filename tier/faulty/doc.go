// Package faulty decorates tiers so that operations go wrong by plan: Tier any tier.Tier, SlotTier a tier.SlotTier.
//
// The operations that a plan may name are the methods: OpLookup, OpRetain, OpGet, OpPut and OpDelete, and of a slot tier
// OpOpen, OpReserve and OpPublish. What gives something back (Release, Abort, Quarantine, Corrupt, Close) never
// fails and is not counted. What an action does:
//
//   - Fail: the tier is not asked; the fault's error is returned.
//   - Partial: half of it is done. Get writes the first half of its destination, Lookup the first half of the states, Retain
//     pins the first half, Put hands on an image whose second half is missing, which the tier must refuse, and Reserve aborts
//     what it reserved.
//   - Corrupt: Get flips a bit of what it read, after the tier verified it; Put flips one on the way to the tier, which must
//     refuse it; Open and Publish flip one in the slot, as failing memory does. Operations without bytes do as planned.
//   - Stall and Delay: the operation waits first, until its context ends where it has one.
//   - Crash: this operation and all after it fail with the fault's error, but for those that give something back.
//
// Everything is as safe for concurrent use as the tier beneath.
package faulty
