//go:build race

package ibverbs

const raceEnabled = true
