package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// The example runs with two processes. Its output reports every layer, the path that was used, and
// the end of the request.
func TestExample(t *testing.T) {
	name := filepath.Join(t.TempDir(), "prefill")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", name, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for device, path := range map[string]string{"host": "tcp", "sim": "nvlink"} {
		out, err := exec.CommandContext(t.Context(), name, "-device", device).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", device, err, out)
		}
		n := strings.Count(string(out), "is in its pages")
		if n != layers || !strings.Contains(string(out), "bytes transferred by "+path+"\n") || !strings.HasSuffix(string(out), "decoding can begin\n") {
			t.Errorf("%s: %s", device, out)
		}
	}
}
