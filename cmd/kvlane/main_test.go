package main

import (
	"os"
	"testing"

	"github.com/kvlane/kvlane/internal/testkit"
)

// Tests, and the processes that they start, are not configured by whoever runs them.
func TestMain(m *testing.M) {
	for i := range settings {
		_ = os.Unsetenv(settings[i].env()) // it fails for no name that there is
	}
	_ = os.Setenv(configEnv, os.DevNull)
	testkit.Main(m)
}
