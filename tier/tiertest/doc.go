// Package tiertest is the conformance suite of tiers. Run checks the contract of tier.Tier, and of
// tier.SlotTier if implemented, for an implementation or a decorator. The package also creates
// images for tests.
//
// The suite opens and closes each tier inside its test. Nothing runs in parallel. Some tests run in
// a bubble of testing/synctest: a tier must wait on channels and timers that it creates after it is
// opened.
package tiertest
