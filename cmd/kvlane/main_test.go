package main

import (
	"os"
	"testing"

	"github.com/kvlane/kvlane/internal/settings"
	"github.com/kvlane/kvlane/internal/testkit"
)

// commandEnv names the environment variable that makes a process of this test program the command.
const commandEnv = "KVLANE_TEST_COMMAND"

// Tests, and the processes that they start, are not configured by whoever runs them.
func TestMain(m *testing.M) {
	if os.Getenv(commandEnv) != "" {
		main() // which exits
	}
	for i := range settings.Table {
		_ = os.Unsetenv(settings.Table[i].Env()) // no name of a setting makes it fail
	}
	_ = os.Setenv(configEnv, os.DevNull)
	testkit.Main(m)
}
