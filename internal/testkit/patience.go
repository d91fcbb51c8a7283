package testkit

import (
	"os"
	"time"
)

// PatienceEnv names the environment variable that shortens Patience, for tests that must fail.
const PatienceEnv = "KVLANE_PATIENCE"

// patience is longer than any machine needs for an event of a test.
const patience = 10 * time.Minute

// Patience returns the time after which a test gives up waiting for an event that must happen. It
// is no measure of speed: a test that passes never waits so long.
func Patience() time.Duration {
	if less, err := time.ParseDuration(os.Getenv(PatienceEnv)); err == nil {
		return min(patience, less)
	}
	return patience
}
