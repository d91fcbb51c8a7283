package main

import (
	"strings"
	"testing"
)

// A variable whose name is almost that of a setting is named in a warning. Others are no concern of kvlane's.
func TestMisspelledVariable(t *testing.T) {
	t.Setenv("KVLANE_CACHE_BYTE", "1GiB")
	t.Setenv("KVLANE_SERVICE_HOST", "10.0.0.1")
	_, _, stderr := execute(t, "topo")
	if !strings.Contains(stderr, "KVLANE_CACHE_BYTE ") || !strings.Contains(stderr, "nearest=KVLANE_CACHE_BYTES") || strings.Contains(stderr, "SERVICE") {
		t.Errorf("standard error %q", stderr)
	}
}
