package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// A command fails if its output cannot be written, and so does the help. The error advises only
// about the output.
func TestFullStandardOutput(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, args := range [][]string{{"version"}, {"--version"}, {"--help"}, {"bench", "--help"}, {"config", "show"}} {
		var stderr bytes.Buffer
		code := run(t.Context(), args, full, &stderr)
		if code != exitFailure || !strings.Contains(stderr.String(), "no space left on device") {
			t.Errorf("%v: exit code %d, standard error %q", args, code, stderr.String())
		}
		if !strings.Contains(stderr.String(), "Next: free space at the destination of standard output") || strings.Contains(stderr.String(), "store gc") {
			t.Errorf("%v: %q, want advice about the output", args, stderr.String())
		}
	}
}
