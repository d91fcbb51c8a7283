package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/internal/testkit"
)

// One-line scripts that replace the binaries of the GPU verification kit.
const (
	passes = `echo "--- PASS: TestGPU (0.01s)"; exit 0`
	fails  = `echo "--- FAIL: TestGPU (0.01s)"; exit 1`
	none   = `echo "testing: warning: no tests to run"; exit 0`
	works  = `echo "kvlane $*"; while [ $# -gt 0 ]; do case $1 in --out) echo {} >"$2";; esac; shift; done; exit 0`
	breaks = `case "$*" in *copy*--out*) echo "it broke"; exit 1;; esac; echo "kvlane $*"; exit 0`
)

func TestHardwareScript(t *testing.T) {
	testkit.SkipRace(t, "a shell runs the commands")
	whole := []string{"calibrate.txt", "demo.txt", "report.txt", "run.json", "store.txt", "suites.txt", "summary.txt"}
	for name, c := range map[string]struct {
		device, streams, kvlane string
		args                    []string
		code                    int
		summary                 string
		files                   []string
	}{
		"all is well":    {passes, passes, works, nil, 0, "nothing failed", whole},
		"simulated":      {fails, passes, works, []string{"--device", "sim"}, 0, "nothing failed", whole},
		"a suite fails":  {fails, passes, works, nil, 1, "SOMETHING FAILED", whole},
		"no test is run": {passes, none, works, nil, 1, "0 passed, 0 failed", whole},
		"the benchmark fails": {passes, passes, breaks, nil, 1, "it broke", []string{
			"calibrate.txt", "demo.txt", "store.txt", "suites.txt", "summary.txt",
		}},
		"unknown device": {passes, passes, works, []string{"--device", "abacus"}, 2, "", nil},
		"no binary":      {passes, "", works, nil, 2, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			kit, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
			if c.files != nil { // left by an earlier run
				if err := errors.Join(os.Mkdir(out, 0o755), os.WriteFile(filepath.Join(out, "run.json"), nil, 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			printed, code := runScript(t, kit, "hardware", "run", map[string]string{
				"device-cuda.test": c.device, "stream-copy.test": c.streams, "stream-file.test": passes, "share.test": passes, "transfer.test": passes, "engine.test": passes,
				"kvlane": c.kvlane,
			}, append(c.args, out)...)
			if code != c.code || !strings.Contains(printed, c.summary) {
				t.Errorf("exit code %d, want %d with %q:\n%s", code, c.code, c.summary, printed)
			}
			files := filesIn(t, out)
			if !slices.Equal(files, c.files) {
				t.Errorf("files %v, want %v", files, c.files)
			}
		})
	}
}

// runScript copies a script of tools and its library into a kit, together with scripts that replace
// the kit's binaries. A binary without a text is missing. It runs the script and returns its output
// and exit code.
func runScript(t *testing.T, kit, script, name string, binaries map[string]string, args ...string) (string, int) {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		testkit.Skip(t, "bash", err.Error())
	}
	files := make(map[string]string)
	for in, file := range map[string]string{script: name, "kit.sh": "kit.sh"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "tools", in))
		if err != nil {
			t.Fatal(err)
		}
		files[file] = string(text)
	}
	for binary, text := range binaries {
		if text != "" {
			files[binary] = "#!/bin/sh\n" + text + "\n"
		}
	}
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(kit, file), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	printed, err := exec.CommandContext(t.Context(), bash, append([]string{filepath.Join(kit, name)}, args...)...).CombinedOutput()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return string(printed), exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(printed), 0
}

// filesIn returns the names in a folder, or nil if there is no folder.
func filesIn(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var files []string
	for _, e := range entries {
		files = append(files, e.Name())
	}
	return files
}
