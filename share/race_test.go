//go:build race

package share_test

const raceEnabled = true
