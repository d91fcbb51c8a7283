package archtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/testkit"
)

// mutant is a change of the source that adds a defect. A test must detect it.
type mutant struct {
	pkg, test string   // directory and name of the test that must detect the defect
	edits     []string // file, old text and new text of each change; the old text occurs once in the file
	hangs     bool     // with the defect the test may wait forever
}

func defect(pkg, test string, edits ...string) mutant {
	return mutant{pkg: pkg, test: test, edits: edits}
}

// hang returns a defect with which the test may wait forever.
func hang(pkg, test string, edits ...string) mutant {
	return mutant{pkg: pkg, test: test, edits: edits, hangs: true}
}

// mutantTime limits each run of a test with a mutant. A test that takes longer is taken to wait
// forever, which detects the defect. Builds have no limit.
const mutantTime = time.Minute

// hangTime replaces mutantTime for a defect with which the test may wait forever.
const hangTime = 10 * time.Second

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

// report has the results of TestMutants to repeat at the end of the output.
var report struct {
	sync.Mutex
	late, failed []string
}

// TestMutantsReport repeats the results of TestMutants that need attention. It is the last test of
// make mutants, so that they are at the end of the output.
func TestMutantsReport(t *testing.T) {
	for _, m := range report.late {
		t.Logf("found late: %s", m)
	}
	for _, m := range report.failed {
		t.Errorf("not found: %s", m)
	}
}

func (m *mutant) mustFail(t *testing.T) {
	t.Helper()
	result := "the test was not built"
	defer func() {
		report.Lock()
		defer report.Unlock()
		if t.Failed() {
			report.failed = append(report.failed, fmt.Sprintf("%s, in %s: %s", t.Name(), m.edits[0], result))
		} else if result != "" {
			report.late = append(report.late, fmt.Sprintf("%s, in %s: %s", t.Name(), m.edits[0], result))
		}
	}()
	binary := m.build(t)
	most := mutantTime
	if m.hangs {
		most = hangTime
	}
	for try := range mutantTries {
		out, err := run(t, filepath.Join(root, m.pkg), binary, "-test.run", "^"+m.test+"$", "-test.timeout", most.String())
		var failed *exec.ExitError
		switch {
		case err == nil:
			result = fmt.Sprintf("the test passes with the defect in, run %d", try+1)
			t.Logf("%s:\n%s", result, out)
			continue
		case !m.hangs && strings.Contains(out, "panic: test timed out"):
			result = fmt.Sprintf("the test takes more than %v; if it waits forever with the defect, declare it by hang", most)
			t.Logf("found: %s:\n%s", result, out)
		case !errors.As(err, &failed) || !strings.Contains(out, "--- FAIL: "+m.test) && !strings.Contains(out, "panic: "):
			result = fmt.Sprintf("a test other than the expected one failed: %v", err)
			t.Errorf("%s\n%s", result, out)
		default:
			if try == 0 {
				result = ""
			}
			first, _, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(out, "--- FAIL: "+m.test)), "\n    --- ")
			t.Logf("found: %.300s", first)
		}
		return
	}
	t.Error("the test does not find the defect")
}

// build returns the test binary of the mutant's package, built with the mutant.
func (m *mutant) build(t *testing.T) (binary string) {
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
	return binary
}

func run(t *testing.T, dir, name string, args ...string) (string, error) {
	t.Helper()
	c := exec.CommandContext(t.Context(), name, args...)
	c.Dir = dir
	c.Env = append(os.Environ(), testkit.PatienceEnv+"="+mutantPatience)
	c.WaitDelay = time.Second
	out, err := c.CombinedOutput()
	return string(out), err
}
