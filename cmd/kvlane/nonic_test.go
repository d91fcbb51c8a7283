//go:build nonic

package main

import (
	"strings"
	"testing"
)

// A build without the code for NICs advises another build, and no provider that it does not have either.
func TestAdviceWithoutNICCode(t *testing.T) {
	code, _, stderr := execute(t, "demo", "--device", "sim", "--gdr", "require", "--dir", t.TempDir())
	if code != exitFailure || !strings.Contains(stderr, "Next: take a build with the code for NICs") || strings.Contains(stderr, "soft") {
		t.Errorf("exit code %d, standard error %q", code, stderr)
	}
}
