package archtest

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/testkit"
)

// mutant is a change of the source that adds a defect. A test must detect it.
type mutant struct {
	pkg, test string   // directory and name of the test that must detect the defect
	edits     []string // file, old text and new text of each change; the old text occurs once in the file
}

func defect(pkg, test string, edits ...string) mutant { return mutant{pkg, test, edits} }

// mutantTime limits the build of a test with a mutant, and each run of it.
const mutantTime = 2 * time.Minute

// mutantTries is the maximum number of runs in which the test must detect the defect once. On a
// busy machine a race may not occur in every run.
const mutantTries = 3

// mutantPatience is the patience of a test with a mutant, in which the expected event may never
// occur.
const mutantPatience = "10s"

// Every mutant applies to the current source.
func TestMutantsApply(t *testing.T) {
	for _, m := range everyMutant() {
		m.apply(t)
	}
}

// apply returns the changed content of the files that the mutant changes.
func (m *mutant) apply(t *testing.T) map[string]string {
	t.Helper()
	files := make(map[string]string)
	for edit := range slices.Chunk(m.edits, 3) {
		path, err := filepath.Abs(filepath.Join(root, edit[0]))
		if err != nil {
			t.Fatal(err)
		}
		text, changed := files[path]
		if !changed {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			text = string(b)
		}
		if n := strings.Count(text, edit[1]); n != 1 {
			t.Errorf("mutant of %s: %s reads %q %d times, want once: change the mutant with the source", m.test, edit[0], edit[1], n)
		}
		files[path] = strings.Replace(text, edit[1], edit[2], 1)
	}
	return files
}

// TestMutants adds each defect in turn, and expects its test to fail. It changes no file of the
// tree.
func TestMutants(t *testing.T) {
	which := os.Getenv(mutantsEnv)
	if which == "" {
		testkit.Skip(t, "mutants", "it takes minutes: make mutants runs it")
	}
	for _, m := range chosenMutants(t, which) {
		t.Run(m.pkg+"/"+m.test, func(t *testing.T) {
			t.Parallel()
			m.mustFail(t)
		})
	}
}

func (m *mutant) mustFail(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	overlay := map[string]map[string]string{"Replace": {}}
	for path, text := range m.apply(t) {
		changed := filepath.Join(dir, strings.ReplaceAll(path, string(filepath.Separator), "_"))
		if err := os.WriteFile(changed, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay["Replace"][path] = changed
	}
	b, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	list, binary := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "mutant.test")
	if err := os.WriteFile(list, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := run(t, root, "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", list, "-o", binary, "./"+m.pkg); err != nil {
		t.Fatalf("the mutant does not compile: %v\n%s", err, out)
	}
	for try := range mutantTries {
		out, err := run(t, filepath.Join(root, m.pkg), binary, "-test.run", "^"+m.test+"$", "-test.timeout", "60s")
		var failed *exec.ExitError
		switch {
		case err == nil:
			t.Logf("the test passes with the defect in, run %d:\n%s", try+1, out)
			continue
		case !errors.As(err, &failed) || !strings.Contains(out, "--- FAIL: "+m.test) && !strings.Contains(out, "panic: "):
			t.Errorf("a test other than the expected one failed: %v\n%s", err, out)
		default:
			first, _, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(out, "--- FAIL: "+m.test)), "\n    --- ")
			t.Logf("found: %.300s", first)
		}
		return
	}
	t.Error("the test does not find the defect")
}

func run(t *testing.T, dir, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), mutantTime)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = dir
	c.Env = append(os.Environ(), testkit.PatienceEnv+"="+mutantPatience)
	c.WaitDelay = time.Second
	out, err := c.CombinedOutput()
	return string(out), err
}
