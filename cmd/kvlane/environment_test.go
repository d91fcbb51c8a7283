package main

import (
	"strings"
	"testing"
)

// A variable with a misspelled name of a setting causes a warning. Other variables do not.
func TestMisspelledVariable(t *testing.T) {
	t.Setenv("KVLANE_CACHE_BYTE", "1GiB")
	t.Setenv("KVLANE_SERVICE_HOST", "10.0.0.1")
	_, _, stderr := execute(t, "topo")
	if !strings.Contains(stderr, "KVLANE_CACHE_BYTE ") || !strings.Contains(stderr, "nearest=KVLANE_CACHE_BYTES") || strings.Contains(stderr, "SERVICE") {
		t.Errorf("standard error %q", stderr)
	}
}
