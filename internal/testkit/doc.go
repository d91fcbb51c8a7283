// Package testkit has helpers for kvlane's tests: Main runs the tests and then checks for leaks,
// Skip is the only permitted way to skip a test, and Patience is the maximum time for which tests
// wait.
//
// Main is for TestMain and ends the process. Skip must be called in the goroutine of its test.
package testkit
