// Package testkit has common parts of kvlane's test binaries: Main runs the tests and then checks
// for leaks, Skip is the only way to skip a test, and Patience is the longest wait of tests.
//
// Main is for TestMain and owns the process. Skip is safe for concurrent use, on the goroutine of
// its test.
package testkit
