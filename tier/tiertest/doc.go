// Package tiertest is the conformance suite of tiers. Run checks the contract of package tier for
// an implementation or a decorator, and that of tier.SlotTier. The package also makes images for
// tests.
//
// The suite opens and closes each tier inside its test. Nothing runs in parallel. Some tests run in
// a bubble of testing/synctest: a tier must wait on channels and timers that it makes after it is
// opened.
package tiertest
