package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// Two processes of the example: every layer is told of, and the request at the end.
func TestExample(t *testing.T) {
	name := filepath.Join(t.TempDir(), "prefill")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", name, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), name).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if n := strings.Count(string(out), "is in its pages"); n != layers || !strings.HasSuffix(string(out), "decoding can begin\n") {
		t.Errorf("%s", out)
	}
}
