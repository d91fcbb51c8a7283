// Package fault is for injecting faults into simulated devices and decorators. A Plan determines
// which operations fail and how:
//
//	plan := fault.New(seed,
//		fault.Nth("copy", 3).Fail(nil),         // the fourth copy fails with an *Error
//		fault.Rate("read", 0.01).Corrupt(),     // one read in a hundred has a byte flipped
//		fault.Every("write", 10).Partial(nil),  // every tenth write does half of its work and then fails
//		fault.Nth("launch", 0).Stall(),         // the first launch waits for plan.Release()
//		fault.After("append", 20).Fail(enospc), // from the 21st on, all of them, with this cause
//	)
//
// A decorator calls Plan.Hit before each operation and applies the returned Fault. The package of
// the decorator documents the names of its operations. The error of a fault contains the number of
// the fault, so that tests can detect faults that were never reported.
//
// A nil *Plan has no faults. All methods of Plan are safe for concurrent use. Rules are values.
package fault
