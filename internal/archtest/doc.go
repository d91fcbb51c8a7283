// Package archtest holds the tests of kvlane's shape: who may import whom, where unsafe may be used, how long files,
// functions and interfaces may be, and that every implementation runs the conformance suite of its interface. It has no
// code of its own.
package archtest
