//go:build race

package testkit

// Race reports whether the race detector is enabled.
const Race = true
