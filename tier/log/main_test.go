package log_test

import (
	"os"
	"testing"

	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(writerDir); dir != "" {
		writeUntilKilled(dir)
	}
	testkit.Main(m)
}
