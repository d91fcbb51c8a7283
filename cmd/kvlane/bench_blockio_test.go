package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/bench/blocks"
)

func TestBenchBlockio(t *testing.T) {
	for _, flag := range []string{"--sizes=9MiB", "--depth=0", "--rounds=-1", "--sizes=x"} {
		if code, _, stderr := execute(t, "bench", "blockio", flag); code != exitUsage {
			t.Errorf("%s: exit code %d, %s", flag, code, stderr)
		}
	}
	name := filepath.Join(t.TempDir(), "run.json")
	code, stdout, stderr := execute(t, "bench", "blockio", "--sizes", "4KiB", "--depth", "2", "--rounds", "1", "--duration", "2ms", "--out", name)
	if code != exitOK || !strings.Contains(stdout, "bare sockets") {
		t.Fatalf("exit code %d, standard error %q, output:\n%s", code, stderr, stdout)
	}
	b, err := os.ReadFile(name)
	var r blocks.Report
	if err != nil || json.Unmarshal(b, &r) != nil || len(r.Points) != 4 || r.Command == "" {
		t.Errorf("report %+v, %v", r, err)
	}
}
