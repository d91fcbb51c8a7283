package testkit

import (
	"os"
	"time"
)

// PatienceEnv names the environment variable that shortens Patience, for tests that are meant to fail.
const PatienceEnv = "KVLANE_PATIENCE"

// Patience returns how long a test waits for what must happen: d, or what PatienceEnv says where that is less.
func Patience(d time.Duration) time.Duration {
	if less, err := time.ParseDuration(os.Getenv(PatienceEnv)); err == nil {
		return min(d, less)
	}
	return d
}
