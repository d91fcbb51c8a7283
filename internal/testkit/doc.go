// Package testkit is what every test binary of kvlane shares: Main, which runs the tests and then checks that nothing was
// left behind, Skip, the one way to skip a test, and Patience, how long tests wait.
//
// Main is for TestMain and owns the process. Skip is safe for concurrent use, on the test's own goroutine.
package testkit
