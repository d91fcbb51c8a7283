// Package streamtest is the conformance suite of stream.Stream. Every implementation and every
// decorator must pass it.
//
// A test package calls Run with an Env: a function that opens the stream, and two memories to copy
// between. The suite keeps a model of every region that it uses and compares all bytes, so it
// detects missing copies as well as copies that are too long. If the Env has a fault plan, the
// suite also makes the work of the device fail and stall. Otherwise it skips these tests.
package streamtest
