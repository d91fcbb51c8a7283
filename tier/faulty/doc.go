// Package faulty has decorators that inject faults into tiers as a fault.Plan specifies: Tier for a
// tier.Tier, SlotTier for a tier.SlotTier.
//
// The operations of a plan are the methods: OpLookup, OpRetain, OpGet, OpPut and OpDelete, and for
// a slot tier OpOpen, OpReserve and OpPublish. Operations that release something (Release, Abort,
// Quarantine, Corrupt, Close) never fail and are not counted. The actions are:
//
//   - Fail: return the fault's error without calling the tier.
//   - Partial: process half. Get writes the first half of its destination, Lookup the first half of
//     the states. Retain pins the first half. Put passes on an image without its second half, which
//     the tier must refuse. Reserve aborts its reservation.
//   - Corrupt: Get flips a bit after the tier has verified the block. Put flips a bit of the image,
//     which the tier must refuse. Open and Publish flip a bit in the slot, like failing memory.
//     Operations without bytes are not changed.
//   - Stall and Delay: wait before the operation, at most until its context ends.
//   - Crash: this and all later operations fail with the fault's error, except those that release
//     something.
//
// A decorator is as safe for concurrent use as its tier.
package faulty
