package main

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device/cuda/cudatest"
	"github.com/kvlane/kvlane/internal/settings"
	"github.com/kvlane/kvlane/internal/testkit"
)

// commandEnv names the environment variable that makes this test binary run as the kvlane command.
const commandEnv = "KVLANE_TEST_COMMAND"

// TestMain removes settings from the environment, so that tests and their child processes do not
// depend on the user's configuration.
func TestMain(m *testing.M) {
	if os.Getenv(commandEnv) != "" {
		main() // exits
	}
	for env, run := range map[string]func(string) error{ownerEnv: runOwner, strangerEnv: runStranger} {
		if value := os.Getenv(env); value != "" {
			if err := run(value); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	for i := range settings.Table {
		_ = os.Unsetenv(settings.Table[i].Env()) // the name of a setting is always a valid name
	}
	_ = os.Setenv(configEnv, os.DevNull)
	lineInterval = time.Hour
	cudatest.UseDriverOnce()
	testkit.Main(m)
}
