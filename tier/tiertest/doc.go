// Package tiertest is the conformance suite of tiers: Run checks what package tier promises of every implementation and
// of every decorator, and of a tier.SlotTier what that adds. It also has the images that such tests need.
//
// The suite opens each tier inside the test that uses it and closes it there; nothing runs in parallel. Some of its tests
// run in a bubble of testing/synctest: a tier must do its waiting on channels and timers that it makes after it is opened.
package tiertest
