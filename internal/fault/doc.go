// Package fault is the one language in which kvlane's simulated device and its decorators are told which operations
// should go wrong, and how:
//
//	plan := fault.New(seed,
//		fault.Nth("copy", 3).Fail(nil),         // the fourth copy fails with an *Error
//		fault.Rate("read", 0.01).Corrupt(),     // one read in a hundred has a byte flipped
//		fault.Every("write", 10).Partial(nil),  // every tenth write does half of its work and then fails
//		fault.Nth("launch", 0).Stall(),         // the first launch waits for plan.Release()
//		fault.After("append", 20).Fail(enospc), // from the 21st on, all of them, with this cause
//	)
//
// A decorator calls Plan.Hit once for each operation that it is about to do, and does to it what the Fault says. Every
// fault has a number, and its error carries it, so that a test can ask which injected faults were never reported.
// Operations are named by whoever counts them; the names are part of that package's documentation.
//
// A nil *Plan hits nothing. All methods of Plan are safe for concurrent use; rules are values.
package fault
