package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTopo(t *testing.T) {
	file := filepath.Join(t.TempDir(), "topo.svg")
	code, text, stderr := execute(t, "topo", "--svg", file)
	if code != exitOK || !strings.HasPrefix(text, "NUMA node ") {
		t.Fatalf("exit code %d\n%s%s", code, text, stderr)
	}
	if svg, err := os.ReadFile(file); err != nil || !strings.Contains(string(svg), "NUMA node ") {
		t.Errorf("the SVG file: %v\n%s", err, svg)
	}
	code, text, _ = execute(t, "topo", "--json")
	var m struct {
		Nodes  []any `json:"numa_nodes"`
		Memory []any `json:"memory"`
	}
	if code != exitOK {
		t.Fatalf("exit code %d", code)
	}
	if err := json.Unmarshal([]byte(text), &m); err != nil || len(m.Nodes) == 0 || len(m.Memory) < len(m.Nodes) {
		t.Errorf("%+v, %v", m, err)
	}
	if code, _, stderr := execute(t, "topo", "--svg", filepath.Join(file, "x")); code != exitFailure || !strings.Contains(stderr, "draw the topology") {
		t.Errorf("a file that cannot be made: exit code %d\n%s", code, stderr)
	}
}
