package main

import (
	"strings"
	"testing"

	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// Without coverage, run fails at the first measurement and leaves nothing open.
func TestBuildWithoutCoverage(t *testing.T) {
	if err := run(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "-cover") {
		t.Errorf("run: %v", err)
	}
}
