package testkit

import (
	"os"
	"time"
)

// PatienceEnv is the name of the environment variable that reduces Patience, for tests that are
// expected to fail.
const PatienceEnv = "KVLANE_PATIENCE"

// patience is more than any machine needs for an event that a test expects.
const patience = 10 * time.Minute

// Patience returns the maximum time to wait for an event that must happen. It does not measure
// speed: a test that passes never waits that long.
func Patience() time.Duration {
	if less, err := time.ParseDuration(os.Getenv(PatienceEnv)); err == nil {
		return min(patience, less)
	}
	return patience
}
